-- Read-only views for people with psql: queues, partitions, groups, messages, results, dependencies, crons, nodes and
-- losses by retention. They decode the records in place; core/records/ defines the format.
--
-- Times are timestamps, durations are in milliseconds. Messages of queues in memory are not in the database.

-- MessagePack as jsonb. Bytes become hexadecimal text.

create or replace function forebay.uint_at(b bytea, at integer, bytes integer) returns numeric
language plpgsql immutable strict parallel safe as $$
declare
    found numeric := 0;
begin
    for i in at .. at + bytes - 1 loop
        found := found * 256 + get_byte(b, i);
    end loop;
    return found;
end $$;

-- Not strict, like instant: a strict function with a CASE is not inlined.
create or replace function forebay.text_of(b bytea) returns text
language sql immutable parallel safe as $$
    -- Our text is UTF-8, but may contain the character 0, which text in PostgreSQL can't.
    select case when position('\x00'::bytea in b) > 0 then encode(b, 'escape') else convert_from(b, 'UTF8') end
$$;

create or replace function forebay.double_at(b bytea, at integer) returns double precision
language plpgsql immutable strict parallel safe as $$
declare
    high bigint := forebay.uint_at(b, at, 4);
    low  bigint := forebay.uint_at(b, at + 4, 4);
    sign double precision := case when high >= 2147483648 then -1 else 1 end;
    exponent integer := (high >> 20) & 2047;
    fraction double precision := ((high & 1048575) * 4294967296.0 + low) / 4503599627370496.0;
begin
    if exponent = 0 then
        return case when fraction = 0 then 0 else sign * fraction * power(2::double precision, -1022) end;
    end if;
    return sign * (1 + fraction) * power(2::double precision, exponent - 1023);
end $$;

create or replace function forebay.unpack_at(b bytea, at integer, out value jsonb, out next integer)
language plpgsql immutable strict parallel safe as $$
declare
    kind  integer := get_byte(b, at);
    size  integer;
    name  jsonb;
    item  jsonb;
    items jsonb[];
    begins integer;
begin
    next := at + 1;
    if kind < 128 then
        value := to_jsonb(kind);
    elsif kind >= 224 then
        value := to_jsonb(kind - 256);
    elsif kind = 192 then
        value := 'null';
    elsif kind in (194, 195) then
        value := to_jsonb(kind = 195);
    elsif kind between 204 and 207 then
        size := 1 << (kind - 204);
        value := to_jsonb(forebay.uint_at(b, next, size));
        next := next + size;
    elsif kind between 208 and 211 then
        size := 1 << (kind - 208);
        value := to_jsonb(
            forebay.uint_at(b, next, size)
            - case when get_byte(b, next) >= 128 then power(2::numeric, 8 * size) else 0 end
        );
        next := next + size;
    elsif kind = 203 then
        value := to_jsonb(forebay.double_at(b, next));
        next := next + 8;
    elsif kind between 196 and 198 then
        begins := next + (1 << (kind - 196));
        size := forebay.uint_at(b, next, 1 << (kind - 196));
        value := to_jsonb(encode(substr(b, begins + 1, size), 'hex'));
        next := begins + size;
    elsif kind between 160 and 191 or kind between 217 and 219 then
        begins := next + case when kind < 192 then 0 else 1 << (kind - 217) end;
        size := case when kind < 192 then kind - 160 else forebay.uint_at(b, next, begins - next) end;
        value := to_jsonb(forebay.text_of(substr(b, begins + 1, size)));
        next := begins + size;
    elsif kind between 144 and 159 or kind in (220, 221) then
        begins := next + case when kind < 192 then 0 else 2 << (kind - 220) end;
        size := case when kind < 192 then kind - 144 else forebay.uint_at(b, next, begins - next) end;
        next := begins;
        items := '{}';
        for i in 1 .. size loop
            select u.value, u.next into item, next from forebay.unpack_at(b, next) as u;
            items := items || item;
        end loop;
        value := coalesce(to_jsonb(items), '[]');
    elsif kind between 128 and 143 or kind in (222, 223) then
        begins := next + case when kind < 192 then 0 else 2 << (kind - 222) end;
        size := case when kind < 192 then kind - 128 else forebay.uint_at(b, next, begins - next) end;
        next := begins;
        value := '{}';
        for i in 1 .. size loop
            select u.value, u.next into name, next from forebay.unpack_at(b, next) as u;
            select u.value, u.next into item, next from forebay.unpack_at(b, next) as u;
            value := value || jsonb_build_object(name #>> '{}', item);
        end loop;
    else
        raise exception 'no record has a value of kind %', kind using errcode = 'XX001';
    end if;
end $$;

create or replace function forebay.unpack(b bytea) returns jsonb
language sql immutable strict parallel safe as $$ select value from forebay.unpack_at(b, 0) $$;
comment on function forebay.unpack(bytea) is 'The value of a record as JSON';

create or replace function forebay.instant(ms numeric) returns timestamptz
language sql immutable parallel safe as $$
    -- 0 and everything after the year 9999 mean never.
    select case when ms > 0 and ms < 253402300800000 then to_timestamp(ms / 1000.0) end
$$;

create or replace function forebay.little_at(b bytea, at integer) returns bigint
language sql immutable strict parallel safe as $$
    select get_byte(b, at) + (get_byte(b, at + 1) << 8) + (get_byte(b, at + 2) << 16) + get_byte(b, at + 3)::bigint * 16777216
$$;

-- Ids.

create or replace function forebay.message_number(numbers jsonb, "offset" bigint) returns numeric
language sql immutable strict parallel safe as $$
    select (each -> 0)::numeric * 4294967296 + ("offset" - (each -> 1)::bigint)
    from jsonb_array_elements(numbers) as each
    where (each -> 1)::bigint <= "offset"
    order by (each -> 1)::bigint desc
    limit 1
$$;

create or replace function forebay.message_id(number numeric, created_at bigint) returns uuid
language sql immutable strict parallel safe as $$
    -- 48 bits of time, version 7, 12 bits of the number, variant 2, the other 52 bits, 10 zeros.
    select (
        lpad(to_hex(created_at), 12, '0') || '7' || lpad(to_hex(div(number, 4503599627370496)::bigint), 3, '0')
        || lpad(to_hex(2147483648 + div(mod(number, 4503599627370496) * 1024, 4294967296)::bigint), 8, '0')
        || lpad(to_hex(mod(mod(number, 4503599627370496) * 1024, 4294967296)::bigint), 8, '0')
    )::uuid
$$;

create or replace function forebay.json_of(payload text) returns jsonb
language plpgsql immutable strict parallel safe as $$
begin
    return payload::jsonb;
exception when others then
    return null;  -- a string with the character 0, or a number that is too large: see the column payload
end $$;

create or replace function forebay.offset_of(numbers jsonb, number numeric) returns bigint
language sql immutable strict parallel safe as $$
    select (each -> 1)::bigint + mod(number, 4294967296)::bigint
    from jsonb_array_elements(numbers) as each
    where (each -> 0)::numeric = div(number, 4294967296)
$$;

-- The messages of a segment.

create or replace function forebay.unroll(
    base bigint, count integer, created_at bigint, spread bytea, sets bytea, which bytea, body bytea, payloads jsonb
) returns table ("offset" bigint, created_at_ms bigint, attributes jsonb, payload bytea)
language plpgsql immutable parallel safe as $$
#variable_conflict use_variable
declare
    -- Copied into memory: a TOASTed value would be fetched again for every byte that is read.
    flat  bytea := substr(body, 1);
    data  integer := 4 * (count + 1);
    low   integer := 0;
    high  integer;
    runs  integer := greatest(length(spread) / 8, 1);
    ends  integer;
    later bigint;
    place integer;
    at    integer := 0;
begin
    for run in 0 .. runs - 1 loop
        if length(spread) > 0 then
            ends := forebay.little_at(spread, 8 * run);
            later := forebay.little_at(spread, 8 * run + 4);
        else
            ends := count;
            later := 0;
        end if;
        if length(sets) > 0 then
            place := case when length(which) > 0 then forebay.little_at(which, 4 * run) else 0 end;
            attributes := forebay.unpack(substr(sets, forebay.little_at(sets, 4 * place)::integer + 1));
        end if;
        created_at_ms := created_at + later;
        while at < ends loop
            "offset" := base + at;
            if payloads is not null then
                payload := decode(payloads ->> at, 'hex');
            elsif flat is not null then
                high := forebay.little_at(flat, 4 * at + 4);
                payload := substr(flat, data + low + 1, high - low);
                low := high;
            end if;
            return next;
            at := at + 1;
        end loop;
    end loop;
end $$;

-- Queues and their parts.

-- A number of a tenant or a queue, as it stands in keys.
create or replace function forebay.u32(number bigint) returns bytea
language sql immutable parallel safe as $$ select substr(int8send(number), 5) $$;

-- The queues of all tenants whose names begin so. Every shard has names of its own: of its tenants, and by their numbers,
-- of their queues. Loops and no join: a join of records with records may be reordered, and records of other kinds decoded.
create or replace function forebay.queue_names(begins_with text) returns table (
    tenant text, queue text, shard integer, tenant_number bytea, value bytea
)
language plpgsql stable parallel safe rows 100 as $$
declare
    names   bytea;
    tenants bytea;
    queues  bytea;
    found   record;
begin
    -- A name is text, so it never has the byte 0xff.
    for each_shard in 0 .. (select coalesce(max(f.shards), 0) - 1 from forebay.format f) loop
        names := '\x000000000000000053'::bytea || int4send(each_shard);
        tenants := names || 'T'::bytea || convert_to(begins_with, 'UTF8');
        for found in
            select r.key, r.value from forebay.records r where r.key >= tenants and r.key < tenants || '\xff'::bytea
        loop
            queues := names || 'Q'::bytea || forebay.u32((forebay.unpack(found.value) -> 0)::bigint);
            return query
            select
                forebay.text_of(substr(found.key, 15)), forebay.text_of(substr(r.key, 19)), each_shard, substr(r.key, 15, 4), r.value
            from forebay.records r where r.key >= queues and r.key < queues || '\xff'::bytea;
        end loop;
    end loop;
end $$;

create or replace view forebay.queue_keys as
select
    n.tenant,
    n.queue,
    n.tenant_number || forebay.u32((forebay.unpack(n.value) -> 0)::bigint) as prefix,
    n.shard
from forebay.queue_names('') as n;
comment on view forebay.queue_keys is 'What the keys of every queue''s records begin with';

create or replace view forebay.queues as
select
    k.tenant,
    k.queue,
    k.shard,
    coalesce(o.options ->> 'durability', 'fsync') as durability,
    coalesce((o.options -> 'lease_ms')::bigint, 30000) as lease_ms,
    coalesce((o.options -> 'max_attempts')::integer, 3) as max_attempts,
    coalesce((o.options -> 'retention_ms')::bigint, 0) as retention_ms,
    coalesce((o.options -> 'completed_retention_ms')::bigint, 3600000) as completed_retention_ms,
    coalesce((o.options -> 'partition_retention_ms')::bigint, 0) as partition_retention_ms,
    coalesce((o.options -> 'max_wait_ms')::bigint, 0) as max_wait_ms,
    trim_scale(coalesce((o.options -> 'max_wait_ms')::numeric, 0) / 1000) as max_wait_time_seconds,
    coalesce((o.options -> 'delayed_processing_ms')::bigint, 0) as delayed_processing_ms,
    coalesce((o.options -> 'max_size')::bigint, 0) as max_size,
    coalesce((o.options -> 'encryption_enabled')::boolean, false) as encryption_enabled,
    coalesce((o.value -> 2)::numeric, 0) > extract(epoch from clock_timestamp()) * 1000 as paused,
    forebay.instant((o.value -> 2)::numeric) as paused_until,
    forebay.instant((o.value -> 3)::numeric) as closing_at,
    o.options
from forebay.queue_keys k
left join forebay.records r on r.key = k.prefix || 'q'::bytea
cross join lateral (select forebay.unpack(r.value) as value, forebay.unpack(r.value) -> 1 as options) as o;
comment on view forebay.queues is 'Every queue, and its options';
comment on column forebay.queues.encryption_enabled is 'Whether payloads are encrypted';

create or replace view forebay.segments as
select
    k.tenant,
    k.queue,
    forebay.uint_at(r.key, 9, 4)::bigint as partition_id,
    forebay.uint_at(r.key, 13, 8)::bigint as base,
    (v.value -> 0)::integer as count,
    (v.value -> 1)::bigint as payload_bytes,
    forebay.instant((v.value -> 2)::bigint) as created_at,
    k.prefix || 'b'::bytea || decode(v.value ->> 3, 'hex') as body_key
from forebay.queue_keys k
join forebay.records r on r.key >= k.prefix || 'h'::bytea and r.key < k.prefix || 'i'::bytea
cross join lateral (select forebay.unpack(r.value) as value) as v;
comment on view forebay.segments is 'Stretches of logs: one record, and one row of forebay.bodies, for many messages';

create or replace view forebay.partitions as
select
    k.tenant,
    k.queue,
    v.value ->> 0 as partition,
    forebay.uint_at(r.key, 9, 4)::bigint as id,
    (v.value -> 2)::bigint as first_offset,
    coalesce(s.end_offset, (v.value -> 2)::bigint) as end_offset,
    coalesce(s.messages, 0) as messages,
    coalesce(s.payload_bytes, 0) as payload_bytes,
    forebay.instant(s.last_at) as last_pushed_at,
    forebay.instant(greatest(s.last_at, (v.value -> 5)::bigint)) as last_activity,
    forebay.instant((v.value -> 5)::bigint) as emptied_at,
    coalesce((v.value -> 7)::boolean, false) as is_lane
from forebay.queue_keys k
join forebay.records r on r.key >= k.prefix || 'p'::bytea and r.key < k.prefix || 'q'::bytea
cross join lateral (select forebay.unpack(r.value) as value) as v
cross join lateral (
    select
        max(forebay.uint_at(h.key, 13, 8)::bigint + (u.value -> 0)::integer) as end_offset,
        sum((u.value -> 0)::integer)::bigint as messages,
        sum((u.value -> 1)::bigint)::bigint as payload_bytes,
        max((u.value -> 2)::bigint + case
            when length(u.value ->> 4) > 0 then forebay.little_at(decode(right(u.value ->> 4, 8), 'hex'), 0)
            else 0
        end) as last_at
    from forebay.records h
    cross join lateral (select forebay.unpack(h.value) as value) as u
    where h.key >= k.prefix || 'h'::bytea || substr(r.key, 10, 4)
        and h.key < k.prefix || 'h'::bytea || substr(r.key, 10, 4) || '\xffffffffffffffffff'::bytea
) as s;
comment on view forebay.partitions is 'Every partition: where its log begins and ends, and when something last happened in it';

create or replace view forebay.groups as
select
    k.tenant,
    k.queue,
    v.value ->> 0 as "group",
    forebay.instant((v.value -> 1)::bigint) as active_at
from forebay.queue_keys k
join forebay.records r on r.key >= k.prefix || 'g'::bytea and r.key < k.prefix || 'h'::bytea
cross join lateral (select forebay.unpack(r.value) as value) as v;
comment on view forebay.groups is 'Every group that reads a queue';

-- Messages.

create or replace function forebay.records_of(prefix bytea, kind text) returns table (key bytea, value jsonb)
language sql stable parallel safe as $$
    select r.key, forebay.unpack(r.value) from forebay.records r
    where r.key >= prefix || kind::bytea and r.key < prefix || chr(ascii(kind) + 1)::bytea
    offset 0  -- an optimization fence: each value is unpacked once, however often it is used
$$;

-- The state of messages that are neither in line nor completed, by group number: at most one row each.
create or replace function forebay.standings_of(prefix bytea) returns table (
    number bigint, partition_id bigint, "offset" bigint, state text, due_at bigint, expires_at bigint, started_at bigint,
    ended_at bigint, deliveries integer, failures integer, error text, level bigint
)
language sql stable parallel safe as $$
    select
        (l.value -> 0)::bigint, (run -> 0)::bigint, (run -> 1)::bigint + at, 'active', null::bigint, (run -> 5)::bigint,
        (l.value -> 3)::bigint, null::bigint, (run -> 3)::integer, (run -> 4)::integer, nullif(run ->> 6, ''), (run -> 8)::bigint
    from forebay.records_of(prefix, 'l') as l
    cross join lateral jsonb_array_elements(l.value -> 1) as run
    cross join lateral generate_series(0, (run -> 2)::integer - 1) as at
    -- Skip acked messages: a bitmap, as two hex digits per byte.
    where case when at < 4 * length(run ->> 7) then get_bit(decode(run ->> 7, 'hex'), at) = 0 else true end
    union all
    select
        forebay.uint_at(key, 9, 4)::bigint, forebay.uint_at(key, 13, 4)::bigint, forebay.uint_at(key, 25, 8)::bigint + at,
        'scheduled', forebay.uint_at(key, 17, 8)::bigint, null, null, null,
        (value -> 1)::integer, (value -> 2)::integer, nullif(value ->> 3, ''), coalesce((value -> 4)::bigint, 1)
    from forebay.records_of(prefix, 'v')
    cross join lateral generate_series(0, (value -> 0)::integer - 1) as at
    union all
    select
        forebay.uint_at(key, 9, 4)::bigint, forebay.uint_at(key, 13, 4)::bigint, forebay.uint_at(key, 17, 8)::bigint + at,
        'dead', null, null, nullif((value -> 6)::bigint, 0), (value -> 3)::bigint,
        (value -> 1)::integer, (value -> 2)::integer, nullif(value ->> 4, ''), (value -> 5)::bigint
    from forebay.records_of(prefix, 'd')
    cross join lateral generate_series(0, (value -> 0)::integer - 1) as at
    union all
    select
        forebay.uint_at(key, 9, 4)::bigint, forebay.uint_at(key, 13, 4)::bigint, forebay.uint_at(key, 17, 8)::bigint + at,
        coalesce((array['expired', 'cancelled', 'dead', 'evicted'])[(value -> 1)::integer + 1], 'dropped'),
        null, null, null, (value -> 2)::bigint,
        null, null, null, null
    from forebay.records_of(prefix, 'o')
    cross join lateral generate_series(0, (value -> 0)::integer - 1) as at
$$;

create or replace function forebay.notes_of(prefix bytea) returns table (
    kind text, partition_id bigint, "offset" bigint, serial bigint, noted_at bigint, note text
)
language sql stable parallel safe as $$
    select
        (array['result', 'line', 'part', 'attempt'])[v.kind % 4 + 1],
        forebay.uint_at(decode(r.value ->> 4, 'hex'), 12 * (u."offset" - v.base)::integer, 4)::bigint,
        -- An attempt is about 1 to 1,024 messages: the offset of the first, and ten bits for the count less one.
        forebay.uint_at(decode(r.value ->> 4, 'hex'), 12 * (u."offset" - v.base)::integer + 4, 8)::bigint
            >> case when v.kind % 4 = 3 then 10 else 0 end,
        u."offset", u.created_at_ms, forebay.text_of(u.payload)
    from forebay.records_of(prefix, 'i') as r
    cross join lateral (
        select forebay.uint_at(r.key, 13, 8)::bigint as base, forebay.uint_at(r.key, 9, 4)::bigint as kind
    ) as v
    left join forebay.bodies b on b.key = prefix || 'b'::bytea || decode(r.value ->> 3, 'hex')
    cross join lateral forebay.unroll(
        v.base, (r.value -> 0)::integer, (r.value -> 2)::bigint, '', '', '', b.body, null
    ) as u
$$;

create or replace function forebay.messages_of(prefix bytea, now_ms bigint) returns table (
    id uuid, number numeric, partition text, partition_id bigint, "offset" bigint, "group" text, state text,
    payload text, is_encrypted boolean, created_at timestamptz, run_at timestamptz, started_at timestamptz,
    leased_until timestamptz, ended_at timestamptz, priority integer, attempts integer, deliveries integer,
    max_attempts integer, backoff bigint, ttl bigint, timeout bigint, lifo boolean, unique_key text, job_id text,
    transaction_id text, progress integer, progress_msg text, error text, result text, headers jsonb, tags jsonb
)
language sql stable parallel safe as $$
    with options as materialized (
        select coalesce(value -> 1, '{}') as o from forebay.records_of(prefix, 'q')
    ),
    partitions as materialized (
        select
            forebay.uint_at(key, 9, 4)::bigint as id, value ->> 0 as name, value -> 1 as numbers, (value -> 2)::bigint as first,
            case when jsonb_array_length(value -> 1) = 1 then (value -> 1 -> 0 -> 0)::numeric end as only_number,
            (value -> 1 -> 0 -> 1)::bigint as begins
        from forebay.records_of(prefix, 'p')
    ),
    readers as materialized (
        select forebay.uint_at(key, 9, 4)::bigint as number, value ->> 0 as name from forebay.records_of(prefix, 'g')
    ),
    cursors as materialized (
        select
            forebay.uint_at(key, 9, 4)::bigint as number, forebay.uint_at(key, 13, 4)::bigint as partition_id,
            (value -> 0)::bigint as at, coalesce((value -> 2)::numeric, 4611686018427387904) as planned
        from forebay.records_of(prefix, 'c')
    ),
    standing as materialized (select * from forebay.standings_of(prefix)),
    skipped as materialized (
        select
            forebay.uint_at(key, 9, 4)::bigint as number, forebay.uint_at(key, 13, 4)::bigint as partition_id,
            forebay.uint_at(key, 17, 8)::bigint + at as "offset"
        from forebay.records_of(prefix, 's') cross join lateral generate_series(0, (value -> 0)::integer - 1) as at
    ),
    parked as materialized (
        select forebay.uint_at(key, 9, 4)::bigint as partition_id, forebay.uint_at(key, 13, 8)::bigint + at as "offset"
        from forebay.records_of(prefix, 'y') cross join lateral generate_series(0, (value -> 0)::integer - 1) as at
    ),
    withdrawn as materialized (
        select
            forebay.uint_at(key, 9, 4)::bigint as partition_id, forebay.uint_at(key, 13, 8)::bigint + at as "offset",
            (value -> 1)::bigint as ended_at
        from forebay.records_of(prefix, 'e') cross join lateral generate_series(0, (value -> 0)::integer - 1) as at
    ),
    successors as materialized (
        select
            forebay.uint_at(key, 9, 4)::bigint as partition_id, forebay.uint_at(key, 13, 8)::bigint as first,
            (value -> 0)::bigint as last
        from forebay.records_of(prefix, 'u')
    ),
    ties as materialized (
        select
            forebay.uint_at(key, 9, 4)::bigint as partition_id, forebay.uint_at(key, 13, 8)::bigint as "offset",
            value ->> 0 as unique_key
        from forebay.records_of(prefix, 'k')
    ),
    names as materialized (
        select
            forebay.uint_at(r.key, 9, 4)::bigint as partition_id, forebay.uint_at(r.key, 13, 8)::bigint as "offset",
            forebay.text_of(r.value) as job_id
        from forebay.records r where r.key >= prefix || 'm'::bytea and r.key < prefix || 'n'::bytea
    ),
    transactions as materialized (
        select forebay.uint_at(key, 9, 4)::bigint as partition_id, (each -> 0)::bigint as "offset", each ->> 1 as transaction_id
        from forebay.records_of(prefix, 'x') cross join lateral jsonb_array_elements(value -> 1) as each
    ),
    progresses as materialized (
        select forebay.uint_at(key, 9, 4)::bigint as partition_id, forebay.uint_at(key, 13, 8)::bigint as "offset", value
        from forebay.records_of(prefix, 'j')
    ),
    results as materialized (
        select distinct on (n.partition_id, n."offset") n.partition_id, n."offset", n.note
        from forebay.notes_of(prefix) as n where n.kind = 'result'
        order by n.partition_id, n."offset", n.serial desc
    ),
    kept as materialized (
        select
            p.id as partition_id, p.name as partition, p.first, u."offset", u.created_at_ms, u.payload,
            coalesce(u.attributes, '[]') as a,
            case
                when jsonb_typeof(u.attributes -> 7) = 'array' then (u.attributes -> 7 -> 0)::numeric
                when p.only_number is not null then p.only_number * 4294967296 + (u."offset" - p.begins)
                else forebay.message_number(p.numbers, u."offset")
            end as number,
            coalesce((nullif(u.attributes -> 7, 'null') -> 1)::bigint, u.created_at_ms) as shown_at,
            coalesce(forebay.offset_of(p.numbers, (nullif(u.attributes -> 7, 'null') -> 0)::numeric), u."offset") as own
        from forebay.records_of(prefix, 'h') as h
        cross join lateral (
            select
                forebay.uint_at(h.key, 13, 8)::bigint as base, prefix || 'b'::bytea || decode(h.value ->> 3, 'hex') as body_key,
                nullif(h.value -> 8, 'null') as payloads
        ) as s
        join partitions p on p.id = forebay.uint_at(h.key, 9, 4)::bigint
        left join forebay.bodies b on b.key = s.body_key
        cross join lateral forebay.unroll(
            s.base, (h.value -> 0)::integer, (h.value -> 2)::bigint, decode(coalesce(h.value ->> 4, ''), 'hex'),
            decode(coalesce(h.value ->> 5, ''), 'hex'), decode(coalesce(h.value ->> 6, ''), 'hex'), b.body, s.payloads
        ) as u
    ),
    stands as (
        select
            m.*, coalesce(g.name, 'default') as "group", x.deliveries, x.failures, x.error, x.level, x.expires_at, x.started_at,
            coalesce(x.ended_at, w.ended_at) as ended_at,
            coalesce((m.a -> 3)::bigint, 0) as ttl,
            case
                when x.state = 'scheduled' then x.due_at
                when m.offset >= coalesce(c.planned, 4611686018427387904) and not v.in_line then m.created_at_ms + v.delay
                when g.number is null then m.created_at_ms + v.delay
                else m.created_at_ms + v.delay + coalesce((q.o -> 'delayed_processing_ms')::bigint, 0)
            end as due,
            case
                when y."offset" is not null then 'parked'
                when g.number is null then case when w."offset" is not null then 'cancelled' else 'waits' end
                when x.state = 'scheduled' then 'waits or is evicted'
                when x.state is not null then x.state
                when not v.in_line and m.offset >= coalesce(c.planned, 4611686018427387904) then 'waits'
                when v.in_line and m.offset >= coalesce(c.at, m.first) and k."offset" is null then 'waits or is evicted'
                else 'completed'
            end as place,
            coalesce((q.o -> 'max_wait_ms')::bigint, 0) as max_wait,
            q.o
        from kept m
        cross join options q
        cross join lateral (
            select
                coalesce((m.a -> 1)::bigint, 0) as delay,
                not (
                    coalesce((m.a -> 0)::integer, 0) <> 0 or coalesce((m.a -> 1)::bigint, 0) <> 0
                    or coalesce((m.a -> 2)::boolean, false) or coalesce(jsonb_array_length(m.a -> 8), 0) > 0
                ) as in_line
        ) as v
        left join readers g on true
        left join cursors c on c.number = g.number and c.partition_id = m.partition_id
        left join standing x on x.number = g.number and x.partition_id = m.partition_id and x."offset" = m.offset
        left join skipped k on k.number = g.number and k.partition_id = m.partition_id and k."offset" = m.offset
        left join parked y on y.partition_id = m.partition_id and y."offset" = m.offset
        left join withdrawn w on w.partition_id = m.partition_id and w."offset" = m.offset
        left join successors l on l.partition_id = m.partition_id and l.first = m.own
        where (l.last is null or l.last = m.offset) and coalesce(x.state, '') <> 'dropped'
    ),
    stated as (
        select
            s.*,
            case
                when s.place = 'waits or is evicted' and s.max_wait > 0 and s.due + s.max_wait < now_ms then 'evicted'
                when s.place in ('waits', 'waits or is evicted', 'parked') and s.ttl > 0 and s.created_at_ms + s.ttl <= now_ms then 'expired'
                when s.place in ('waits', 'waits or is evicted') then case when s.due > now_ms then 'delayed' else 'waiting' end
                else s.place
            end as state
        from stands s
    )
    select
        forebay.message_id(m.number, m.shown_at), m.number, m.partition, m.partition_id, m.offset, m."group", m.state,
        forebay.text_of(m.payload), coalesce((m.o -> 'encryption_enabled')::boolean, false),
        forebay.instant(m.shown_at),
        case when m.state in ('waiting', 'delayed') then forebay.instant(m.due) end,
        case when m.state in ('active', 'dead') then forebay.instant(m.started_at) end,
        case when m.state = 'active' then forebay.instant(m.expires_at) end,
        case
            when m.state = 'expired' then forebay.instant(m.created_at_ms + m.ttl)
            when m.state = 'evicted' and m.ended_at is null then forebay.instant(m.due + m.max_wait)
            else forebay.instant(m.ended_at)
        end,
        case when m.level is not null then -floor(m.level / 2.0)::integer else coalesce((m.a -> 0)::integer, 0) end,
        coalesce(m.failures, 0), coalesce(m.deliveries, 0),
        coalesce((nullif(m.a -> 5, 'null'))::integer, (m.o -> 'max_attempts')::integer, 3),
        coalesce((nullif(m.a -> 6, 'null') -> 1)::bigint, (m.o -> 'backoff' -> 1)::bigint, 1000),
        m.ttl,
        coalesce(nullif((m.a -> 4)::bigint, 0), (m.o -> 'lease_ms')::bigint, 30000),
        coalesce((m.a -> 2)::boolean, false),
        nullif(t.unique_key, ''), j.job_id, i.transaction_id,
        coalesce((f.value -> 0)::integer, 0), nullif(f.value ->> 1, ''), m.error, r.note,
        (select jsonb_object_agg(h ->> 0, h ->> 1) from jsonb_array_elements(m.a -> 10) as h), nullif(m.a -> 11, '[]')
    from stated m
    left join ties t on t.partition_id = m.partition_id and t."offset" = m.offset
    left join names j on j.partition_id = m.partition_id and j."offset" = m.own
    left join transactions i on i.partition_id = m.partition_id and i."offset" = m.offset
    left join progresses f on f.partition_id = m.partition_id and f."offset" = m.own
    left join results r on r.partition_id = m.partition_id and r."offset" = m.own
$$;

create or replace view forebay.messages as
select
    k.tenant, k.queue, m.*, forebay.json_of(m.payload) as data, forebay.json_of(m.result) as result_data
from forebay.queue_keys k
cross join lateral forebay.messages_of(
    k.prefix, floor(extract(epoch from clock_timestamp()) * 1000)::bigint
) as m;
comment on view forebay.messages is
    'Every message that is kept, once for each group, and where it stands there. Say which queue: all of it is unrolled';

create or replace view forebay.notes as
select
    k.tenant, k.queue, n.kind, n.partition_id, n."offset", forebay.instant(n.noted_at) as noted_at, n.note,
    forebay.json_of(n.note) as data
from forebay.queue_keys k
cross join lateral forebay.notes_of(k.prefix) as n;
comment on view forebay.notes is
    'What is kept beside messages: results, lines of their logs, parts of results, failed attempts of any group';

create or replace view forebay.dependencies as
select k.tenant, k.queue, m.number, m.id, d.first + at as depends_on
from forebay.queue_keys k
cross join lateral (
    select p.id as partition_id, forebay.message_number(p.numbers, u."offset") as number,
        forebay.message_id(forebay.message_number(p.numbers, u."offset"), u.created_at_ms) as id, u.attributes -> 8 as spans
    from forebay.records_of(k.prefix, 'h') as h
    join (
        select forebay.uint_at(key, 9, 4)::bigint as id, value -> 1 as numbers from forebay.records_of(k.prefix, 'p')
    ) as p on p.id = forebay.uint_at(h.key, 9, 4)::bigint
    cross join lateral forebay.unroll(
        forebay.uint_at(h.key, 13, 8)::bigint, (h.value -> 0)::integer, (h.value -> 2)::bigint,
        decode(coalesce(h.value ->> 4, ''), 'hex'), decode(coalesce(h.value ->> 5, ''), 'hex'),
        decode(coalesce(h.value ->> 6, ''), 'hex'), null, null
    ) as u
    where length(h.value ->> 5) > 0
) as m
cross join lateral jsonb_array_elements(m.spans) as span
cross join lateral (select (span -> 0)::numeric as first) as d
cross join lateral generate_series(0, (span -> 1)::integer - 1) as at;
comment on view forebay.dependencies is 'Which message waits for which, by their numbers; also those that are no longer waited for';

create or replace view forebay.crons as
select
    k.tenant,
    k.queue,
    r.value ->> 'name' as name,
    nullif(r.value ->> 'schedule', '') as schedule,
    r.value ->> 'zone' as zone,
    (r.value -> 'every_ms')::bigint as every_ms,
    forebay.json_of(forebay.text_of(decode(r.value ->> 'payload', 'hex'))) as data,
    coalesce((r.value -> 'attributes' -> 0)::integer, 0) as priority,
    forebay.instant((r.value -> 'next_at')::bigint) as next_run,
    forebay.instant((r.value -> 'last_slot')::bigint) as last_run,
    (r.value -> 'fired')::bigint as fired
from forebay.queue_keys k
cross join lateral forebay.records_of(k.prefix, 't') as r;
comment on view forebay.crons is 'What is pushed again and again, and when next';

create or replace view forebay.nodes as
select
    c.node as node_id,
    split_part(c.node, ' ', 1) as host,
    substring(split_part(c.node, ' ', 2) from '[0-9]+$')::integer as port,
    bool_or(c.shard = -1) as is_leader,
    count(*) as shards,
    max(c.kept_at) as last_heartbeat
from (select distinct on (shard) shard, node, kept_at from forebay.commits order by shard, number desc) as c
group by c.node;
comment on view forebay.nodes is 'Who has claimed shards last, and when it last committed something';

create or replace view forebay.retention_history as
select
    md5(k.prefix || int8send(u."offset") || int8send(run.at))::uuid as id,
    e.event ->> 'tenant' as tenant,
    e.event ->> 'queue' as queue,
    run.run ->> 0 as partition,
    case when e.event ->> 'kind' = 'discarded' then 0 else (run.run -> 2)::bigint end as messages_deleted,
    case when e.event ->> 'kind' = 'retired' then (run.run -> 2)::bigint else 0 end as completed_deleted,
    case when e.event ->> 'kind' = 'discarded' then (run.run -> 2)::bigint else 0 end as failed_deleted,
    case e.event ->> 'kind'
        when 'retired' then 'completed' when 'outdated' then 'retention' when 'discarded' then 'failed' else 'partition'
    end as retention_type,
    forebay.instant((e.event -> 'at')::bigint) as executed_at
from forebay.queue_names('_system.') as n
cross join lateral (
    select n.tenant_number || forebay.u32((forebay.unpack(n.value) -> 0)::bigint) as prefix
) as k
cross join lateral forebay.records_of(k.prefix, 'h') as h
left join forebay.bodies b on b.key = k.prefix || 'b'::bytea || decode(h.value ->> 3, 'hex')
cross join lateral forebay.unroll(
    forebay.uint_at(h.key, 13, 8)::bigint, (h.value -> 0)::integer, (h.value -> 2)::bigint,
    decode(coalesce(h.value ->> 4, ''), 'hex'), '', '', b.body, nullif(h.value -> 8, 'null')
) as u
cross join lateral (select forebay.json_of(forebay.text_of(u.payload)) as event) as e
cross join lateral jsonb_array_elements(e.event -> 'runs') with ordinality as run (run, at)
where n.queue = 'events'
    and e.event ->> 'kind' in ('retired', 'outdated', 'discarded', 'removed');
comment on view forebay.retention_history is
    'What is no longer kept, and why, as long as lifecycle events are: one row for each stretch of a partition';
