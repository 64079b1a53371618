-- Push from SQL: select forebay.push('emails', '{"to": 7}') in a transaction of the application's own.
--
-- A pushed message waits in a table until the server takes it: it is invisible before the transaction commits, and
-- can't be lost afterwards. The server deletes its row in the same commit that appends it to the queue.

create sequence if not exists forebay.turns;

create table if not exists forebay.inbox_turns (
    xid  xid8 primary key default pg_current_xact_id(),
    turn bigint
);
comment on table forebay.inbox_turns is 'The order in which transactions that pushed have committed';

create table if not exists forebay.inbox (
    id        bigint generated always as identity primary key,
    xid       xid8        not null default pg_current_xact_id(),
    tenant    text        not null default 'default',
    queue     text        not null,
    payload   jsonb       not null,
    options   jsonb       not null,
    pushed_at timestamptz not null default clock_timestamp()
);
comment on table forebay.inbox is 'What was pushed from SQL and waits to be taken over';
create index if not exists inbox_by_transaction on forebay.inbox (xid, id);
create index if not exists inbox_by_turn on forebay.inbox_turns (turn);

create table if not exists forebay.refused (
    id         bigint primary key,
    tenant     text        not null,
    queue      text        not null,
    payload    jsonb       not null,
    options    jsonb       not null,
    pushed_at  timestamptz not null,
    refused_at timestamptz not null default clock_timestamp(),
    code       text        not null,
    error      text        not null
);
comment on table forebay.refused is 'What was pushed from SQL and can''t be taken over, and why; see forebay.push_again()';

alter table forebay.inbox set (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000);
alter table forebay.inbox_turns set (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000);

-- Runs when the transaction commits. If one transaction had committed before another began its commit, the first has
-- the lower turn, whichever pushed first.
create or replace function forebay.take_turn() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    update forebay.inbox_turns set turn = nextval('forebay.turns') where xid = new.xid;
    return null;
end $$;

do $$
begin
    if not exists (select from pg_trigger where tgname = 'take_turn' and tgrelid = 'forebay.inbox_turns'::regclass) then
        create constraint trigger take_turn after insert on forebay.inbox_turns
        deferrable initially deferred for each row execute function forebay.take_turn();
    end if;
end $$;

-- Fires also in a session with session_replication_role = replica; and nobody can attach it to another table.
alter table forebay.inbox_turns enable always trigger take_turn;
revoke execute on function forebay.take_turn() from public;

create or replace function forebay.push(queue text, payload jsonb, options jsonb default '{}') returns bigint
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    unknown text;
    made    bigint;
begin
    if queue is null or queue !~ '^[A-Za-z0-9_.-]+$' or length(queue) > 256 then
        raise exception 'queue % is no name of a queue', coalesce(quote_literal(queue), 'null')
            using errcode = '22023', hint = 'Names have 1 to 256 letters, digits and the characters _ . -';
    end if;
    if payload is null then
        raise exception 'the payload is null' using errcode = '22004', hint = 'JSON''s null is ''null''::jsonb';
    end if;
    if options is null or jsonb_typeof(options) <> 'object' then
        raise exception 'options are no JSON object' using errcode = '22023', hint = 'Such as {"delay_ms": 5000}';
    end if;
    if options <> '{}' then
        select string_agg(name, ', ') into unknown from jsonb_object_keys(options) as name
        where name <> all (array[
            'partition', 'key', 'priority', 'delay_ms', 'ttl_ms', 'timeout_ms', 'max_attempts', 'backoff', 'lifo',
            'unique_key', 'dedup', 'dedup_window_ms', 'dedup_max_ms', 'job_id', 'transaction_id', 'depends_on',
            'on_failed', 'keys_if_undelivered', 'headers', 'tags', 'task'
        ]);
        if unknown is not null then
            raise exception 'there is no option %', unknown
                using errcode = '22023', hint = 'docs/PROTOCOL.md lists the options of a push over HTTP; these are the same';
        end if;
    end if;
    insert into forebay.inbox_turns default values on conflict do nothing;
    insert into forebay.inbox (queue, payload, options) values (queue, payload, options) returning id into made;
    -- Only a sleeping server holds this lock and needs a wake-up; one that is awake polls. NOTIFY takes a lock for the
    -- whole database on commit, so without this check concurrent pushes would wait for each other.
    if not pg_try_advisory_xact_lock_shared(1346719315, 3) then
        notify forebay;
    end if;
    return made;
end $$;
comment on function forebay.push(text, jsonb, jsonb) is
    'Push a message when this transaction commits; options as over HTTP. Answers its place in forebay.inbox';

create or replace function forebay.push_again(refused_id bigint) returns bigint
language plpgsql as $$
declare
    old forebay.refused;
begin
    delete from forebay.refused where id = refused_id returning * into old;
    if old.id is null then
        raise exception 'nothing was refused under %', refused_id using errcode = 'P0002';
    end if;
    return forebay.push(old.queue, old.payload, old.options);
end $$;
comment on function forebay.push_again(bigint) is 'Push what was refused once more, after its cause is gone';
