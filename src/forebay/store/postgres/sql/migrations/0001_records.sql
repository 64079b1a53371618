-- The tables of the store: records and bodies by key, and the commits that wrote them.
--
-- No row of these tables is ever updated. A put inserts a row and deletes the one it replaces by its exact primary
-- key. So a transaction that is held open for hours, and keeps dead rows from being vacuumed, costs disk space but
-- no time.

create schema if not exists forebay;

create table if not exists forebay.format (
    one      boolean primary key default true check (one),
    version  integer not null,
    shards   integer not null,
    restored integer not null default 0,
    skip     integer not null default 0
);
comment on table forebay.format is 'What the store says of itself: one row, made when it is first opened';
comment on column forebay.format.version is 'Of the records; before the first release this column was called format';
comment on column forebay.format.restored is 'Times it was restored from a dump, see forebay.mark_restored()';
comment on column forebay.format.skip is 'Names each shard passes over then, because some were given out after the dump';

create table if not exists forebay.commits (
    shard    integer     not null,
    number   bigint      not null,
    epoch    bigint      not null,
    version  bigint      not null,
    at       bigint      not null,
    restored integer     not null,
    node     text        not null,
    kept_at  timestamptz not null default clock_timestamp(),
    primary key (shard, number)
);
comment on table forebay.commits is 'The fence: whoever has inserted the next number of a shard has committed. The last 1,024 of each shard';
comment on column forebay.commits.epoch is 'Of the claim it was made under; a claim is itself a commit';
comment on column forebay.commits.version is 'Of the records put with it';
comment on column forebay.commits.at is 'Time of the last commit that was not a claim, in ms; 0 if there was none';

create table if not exists forebay.records (
    key     bytea  not null,
    version bigint not null,
    value   bytea  not null,
    primary key (key, version)
);
comment on table forebay.records is 'Small records by key; one row of each key, under the version of the commit that put it';

create table if not exists forebay.bodies (
    key  bytea primary key,
    body bytea not null
);
comment on table forebay.bodies is 'Payloads, a segment per row: count + 1 little-endian int32 offsets, then the payloads back to back';

create table if not exists forebay.flushes (
    id bigint generated always as identity primary key
);
comment on table forebay.flushes is 'A commit that is synced makes all before it survive: one row, replaced by each sync';

-- Compression would cost the writer more than it saves, and only an uncompressed value can be read in part.
alter table forebay.records alter column value set storage external;
alter table forebay.bodies alter column body set storage external;

-- Rows are short-lived: vacuum after a number of dead rows, not after a share of a table that may be large.
alter table forebay.records set (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 10000);
alter table forebay.bodies set (
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000,
    toast.autovacuum_vacuum_scale_factor = 0.02, toast.autovacuum_vacuum_threshold = 20000
);
alter table forebay.commits set (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000);

create or replace function forebay.claim(
    p_shard integer, p_least bigint, p_node text,
    out epoch bigint, out number bigint, out version bigint, out at bigint, out passed integer, out now bigint
)
language plpgsql as $$
#variable_conflict use_column
declare
    last   forebay.commits;
    known  forebay.format;
    taken  bigint;
begin
    -- Not durable yet: the store syncs before it issues a name of the new epoch.
    perform set_config('synchronous_commit', 'off', true);
    select * into known from forebay.format;
    loop
        select * into last from forebay.commits c where c.shard = p_shard order by c.number desc limit 1;
        passed := case when coalesce(last.restored, 0) < coalesce(known.restored, 0) then known.skip else 0 end;
        epoch := greatest(coalesce(last.epoch, 0), p_least) + 1 + passed;
        number := coalesce(last.number, 0) + 1;
        version := coalesce(last.version, 0);
        at := coalesce(last.at, 0);
        -- Waits for a running commit of the same number. If that commits, the loop tries the next number.
        insert into forebay.commits (shard, number, epoch, version, at, restored, node)
        values (p_shard, claim.number, claim.epoch, claim.version, claim.at, coalesce(last.restored, 0), p_node)
        on conflict do nothing
        returning commits.number into taken;
        exit when taken is not null;
    end loop;
    delete from forebay.commits c where c.shard = p_shard and c.number = taken - 1024;
    now := floor(extract(epoch from clock_timestamp()) * 1000);
end $$;

create or replace function forebay.fence(
    p_shards integer[], p_epochs bigint[], p_numbers bigint[], p_ats bigint[],
    p_version bigint, p_restored integer, p_node text, p_sync boolean
) returns void
language plpgsql as $$
begin
    if not p_sync then
        perform set_config('synchronous_commit', 'off', true);
    end if;
    insert into forebay.commits (shard, number, epoch, version, at, restored, node)
    select u.shard, u.number, u.epoch, p_version, u.at, p_restored, p_node
    from unnest(p_shards, p_epochs, p_numbers, p_ats) as u (shard, epoch, number, at)
    order by u.shard;
    -- Checked after the insert: the number may be free only because it was taken, and deleted as the 1,025th oldest.
    -- Then there are higher ones.
    if exists (
        select from unnest(p_shards, p_numbers) as u (shard, number)
        where (select max(c.number) from forebay.commits c where c.shard = u.shard) > u.number
    ) then
        raise exception 'a shard was claimed again' using errcode = 'PS001';
    end if;
    if exists (
        select from unnest(p_shards, p_epochs, p_numbers) as u (shard, epoch, number)
        where not exists (
            select from forebay.commits c
            where c.shard = u.shard and c.number = u.number - 1 and c.epoch = u.epoch
        )
    ) then
        raise exception 'the database has lost commits that it had confirmed' using errcode = 'PS002';
    end if;
    delete from forebay.commits c
    using unnest(p_shards, p_numbers) as u (shard, number)
    where c.shard = u.shard and c.number = u.number - 1024;
end $$;

create or replace function forebay.apply(
    p_version bigint,
    p_keys bytea[], p_lows bigint[], p_values bytea[], p_deletes bytea[],
    p_body_keys bytea[], p_bodies bytea[], p_body_deletes bytea[],
    p_clear_lows bytea[], p_clear_highs bytea[],
    p_range_lows bytea[], p_range_highs bytea[],
    p_body_range_lows bytea[], p_body_range_highs bytea[]
) returns void
language plpgsql as $$
begin
    if cardinality(p_clear_lows) > 0 then
        delete from forebay.records r
        using unnest(p_clear_lows, p_clear_highs) as u (low, high)
        where r.key >= u.low and r.key < u.high;
    end if;
    if cardinality(p_keys) > 0 then
        insert into forebay.records (key, version, value)
        select u.key, p_version, u.value from unnest(p_keys, p_values) as u (key, value);
        -- p_lows: lower bound of the replaced row's version. The index finds it at once among thousands of dead ones.
        delete from forebay.records r
        using unnest(p_keys, p_lows) as u (key, low)
        where r.key = u.key and r.version >= u.low and r.version < p_version;
    end if;
    if cardinality(p_bodies) > 0 then
        delete from forebay.bodies b where b.key = any (p_body_keys);
        insert into forebay.bodies (key, body) select unnest(p_body_keys), unnest(p_bodies);
    end if;
    if cardinality(p_deletes) > 0 then
        delete from forebay.records r where r.key = any (p_deletes);
    end if;
    if cardinality(p_body_deletes) > 0 then
        delete from forebay.bodies b where b.key = any (p_body_deletes);
    end if;
    if cardinality(p_range_lows) > 0 then
        delete from forebay.records r
        using unnest(p_range_lows, p_range_highs) as u (low, high)
        where r.key >= u.low and r.key < u.high;
    end if;
    if cardinality(p_body_range_lows) > 0 then
        delete from forebay.bodies b
        using unnest(p_body_range_lows, p_body_range_highs) as u (low, high)
        where b.key >= u.low and b.key < u.high;
    end if;
end $$;

create or replace function forebay.commit(
    p_shards integer[], p_epochs bigint[], p_numbers bigint[], p_ats bigint[],
    p_version bigint, p_restored integer, p_node text, p_sync boolean,
    p_keys bytea[], p_lows bigint[], p_values bytea[], p_deletes bytea[],
    p_body_keys bytea[], p_bodies bytea[], p_body_deletes bytea[],
    p_clear_lows bytea[], p_clear_highs bytea[],
    p_range_lows bytea[], p_range_highs bytea[],
    p_body_range_lows bytea[], p_body_range_highs bytea[]
) returns void
language plpgsql as $$
begin
    perform forebay.fence(p_shards, p_epochs, p_numbers, p_ats, p_version, p_restored, p_node, p_sync);
    perform forebay.apply(
        p_version, p_keys, p_lows, p_values, p_deletes, p_body_keys, p_bodies, p_body_deletes,
        p_clear_lows, p_clear_highs, p_range_lows, p_range_highs, p_body_range_lows, p_body_range_highs
    );
end $$;

create or replace function forebay.flush() returns void
language plpgsql as $$
declare
    made bigint;
begin
    insert into forebay.flushes default values returning id into made;
    delete from forebay.flushes where id = made - 1;
end $$;

create or replace function forebay.mark_restored() returns void
language sql as $$
    -- Random, so that no two copies of one dump issue the same names.
    update forebay.format set restored = restored + 1, skip = 4096 + floor(random() * 4096)::integer;
$$;
comment on function forebay.mark_restored() is
    'Say, before a server is started, that this database was restored from a dump: no id given out since is given out again';
