-- All queries of the store, by name.

-- name: claim
select epoch, number, version, at, passed, now from forebay.claim($1, $2, $3);

-- name: commit
select forebay.commit($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21);

-- name: fence
select forebay.fence($1, $2, $3, $4, $5, $6, $7, $8);

-- name: apply
select forebay.apply($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14);

-- name: last
select epoch, number, version from forebay.commits where shard = $1 order by number desc limit 1;

-- name: kept
select count(*)
from unnest($1::integer[], $2::bigint[], $3::bigint[]) as u (shard, epoch, number)
join forebay.commits c on c.shard = u.shard and c.number = u.number and c.epoch = u.epoch;

-- name: flush
select forebay.flush();

-- name: get
select key, value from forebay.records where key = any ($1);

-- name: scan
select key, value from forebay.records where key >= $1 and key < $2 order by key, version limit $3;

-- name: bodies
select key, body from forebay.bodies where key = any ($1);

-- name: delete_bodies
delete from forebay.bodies where key = any ($1);

-- name: body_keys
select key from forebay.bodies where key > $1 order by key limit $2;

-- name: format
select version, shards, restored, skip from forebay.format;

-- name: set_format
insert into forebay.format as f (version, shards, restored, skip) values ($1, $2, $3, $4)
on conflict (one) do update set version = f.version  -- what is there stays, and is returned
returning version, shards, restored, skip;

-- name: copy_format
insert into forebay.format (version, shards, restored, skip) values ($1, $2, $3, $4)
on conflict (one) do update
set version = excluded.version, shards = excluded.shards, restored = excluded.restored, skip = excluded.skip
returning version, shards, restored, skip;

-- name: has_records
select exists (select from forebay.records) or exists (select from forebay.bodies);

-- name: be_copy
insert into forebay.commits (shard, number, epoch, version, at, restored, node)
select u.shard, $6, u.epoch, $5, u.at, u.restored, $7
from unnest($1::integer[], $2::bigint[], $3::bigint[], $4::integer[]) as u (shard, epoch, at, restored);

-- name: claims
select c.shard, c.epoch, c.at, case when c.restored < coalesce(f.restored, 0) then f.skip else 0 end
from (select distinct on (shard) * from forebay.commits order by shard, number desc) as c
left join forebay.format f on true
order by c.shard;

-- name: forget_commits
delete from forebay.commits;

-- name: try_lock
select pg_try_advisory_lock(1346719315, $1);

-- name: unlock
select pg_advisory_unlock(1346719315, $1);

-- name: lock_for_transaction
select pg_advisory_xact_lock(1346719315, $1);

-- name: about
select
    current_setting('server_version_num')::integer, current_setting('fsync'), current_setting('synchronous_commit'),
    current_setting('transaction_read_only');

-- name: has_migrations
select to_regclass('forebay.migrations') is not null;

-- name: is_before_release
select exists (
    select from pg_attribute where attrelid = to_regclass('forebay.format') and attname = 'format' and not attisdropped
);

-- name: make_migrations
create schema if not exists forebay;
create table if not exists forebay.migrations (
    number     integer primary key,
    name       text        not null,
    applied_at timestamptz not null default now()
);

-- name: applied
select number from forebay.migrations order by number;

-- name: note_migration
insert into forebay.migrations (number, name) values ($1, $2);

-- name: backend
select pid, backend_start from pg_stat_activity where pid = pg_backend_pid();

-- name: end_backend
select pg_terminate_backend(pid) from pg_stat_activity where pid = $1 and backend_start = $2;

-- name: turns
select
    (select case when is_called then last_value else 0 end from forebay.turns),
    pg_snapshot_xmin(pg_current_snapshot())::text::bigint;

-- name: begin_one
select pg_current_xact_id()::text::bigint;

-- name: arrivals
with waiting as (
    select t.turn, i.id, pg_column_size(i.payload) as size
    from forebay.inbox_turns t join forebay.inbox i on i.xid = t.xid
    where t.turn > $3 and not (i.tenant || '/' || i.queue = any ($2::text[]))
    order by t.turn, i.id limit $1
),
taken as (
    select turn, id, sum(size) over (order by turn, id) - size as before from waiting
)
select t.turn, i.id, i.tenant, i.queue, i.payload::text, nullif(i.options, '{}')::text
from taken t join forebay.inbox i on i.id = t.id
where t.before < $4
order by t.turn, i.id;

-- name: left_behind
select (select count(*) from forebay.inbox), (select count(*) from forebay.refused);

-- name: is_inbox_empty
select not exists (
    select from forebay.inbox_turns t join forebay.inbox i on i.xid = t.xid where t.turn > $1
);

-- name: take
with gone as (delete from forebay.inbox where id = any ($1::bigint[]) returning xid, id),
over as (
    delete from forebay.inbox_turns t using (select distinct xid from gone) as g
    where t.xid = g.xid and not exists (
        select from forebay.inbox i where i.xid = t.xid and i.id not in (select id from gone)
    )
)
select count(*) from gone;

-- name: refuse
with gone as (
    delete from forebay.inbox i using unnest($1::bigint[], $2::text[], $3::text[]) as u (id, code, error)
    where i.id = u.id
    returning i.xid, i.id, i.tenant, i.queue, i.payload, i.options, i.pushed_at, u.code, u.error
),
over as (
    delete from forebay.inbox_turns t using (select distinct xid from gone) as g
    where t.xid = g.xid and not exists (
        select from forebay.inbox i where i.xid = t.xid and i.id not in (select id from gone)
    )
)
insert into forebay.refused (id, tenant, queue, payload, options, pushed_at, code, error) select id, tenant, queue, payload, options, pushed_at, code, error from gone;
