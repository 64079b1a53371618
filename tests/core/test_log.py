"""The log: segments form with commits, are cut at 256 KiB, and are read whichever way they lie."""

from hypothesis import given, strategies as st

from forebay.core.api import queries
from forebay.core.bounds import SEGMENT_BYTES_MAX
from forebay.core.log import log as logs
from forebay.core.log.bodies import body_slices, pack_body
from forebay.core.log.runs import pack_runs
from forebay.core.queries.payloads import absent
from forebay.core.state import Log, Run, Segment
from tests.core.harness import Core

payload_lists = st.lists(st.binary(max_size=40), min_size=1, max_size=60)


def segments(core: Core, partition: str = "default") -> list[Segment]:
    return core.engine.queues["default", "q"].partitions[partition].log.segments


def test_pushes_that_meet_in_a_forming_commit_share_a_segment_and_its_time() -> None:
    core = Core()
    core.push(b"1")
    core.now += 5
    core.push(b"2", b"3")
    core.commit()
    core.push(b"4")
    first, second = segments(core)
    assert (first.count, first.runs) == (3, (Run(3, core.now - 5),))
    assert (second.base, second.runs) == (3, (Run(1, core.now),))


def test_times_never_decrease_even_if_the_clock_does() -> None:
    core = Core()
    core.push()
    core.commit()
    later = core.now
    core.now -= 1_000
    core.push()
    assert [segment.runs[0].created_at for segment in segments(core)] == [later, later]


def test_no_body_is_larger_than_a_segment_may_be_unless_it_holds_one_large_payload() -> None:
    core = Core()
    core.push(*[b"x" * 1_000] * 1_000)
    core.push(b"y" * 600_000)
    core.push(*[b"z" * 100_000] * 5)
    core.push(b"")
    core.commit()
    found = segments(core)
    assert sum(segment.count for segment in found) == 1_007
    for segment in found:
        assert segment.body is not None
        assert len(segment.body) <= SEGMENT_BYTES_MAX or segment.count == 1
    assert core.popped(2_000) == [b"x" * 1_000] * 1_000 + [b"y" * 600_000] + [b"z" * 100_000] * 5 + [b""]


def test_a_segment_may_be_filled_to_the_last_byte() -> None:
    core = Core()
    # One payload more would need its own bytes and an offset of four.
    core.push(b"x" * (SEGMENT_BYTES_MAX - 4 * 3))
    core.push(b"")
    core.commit()
    (segment,) = segments(core)
    assert segment.body is not None
    assert len(segment.body) == SEGMENT_BYTES_MAX
    core.push(b"x" * (SEGMENT_BYTES_MAX - 4 * 3 + 1))
    core.push(b"")
    assert len(segments(core)) == 3


@given(payload_lists, st.data())
def test_a_body_gives_back_any_stretch_of_what_went_in(payloads: list[bytes], data: st.DataObject) -> None:
    body = pack_body(payloads, list(map(len, payloads)))
    start = data.draw(st.integers(0, len(payloads) - 1))
    count = data.draw(st.integers(1, len(payloads) - start))
    assert list(body_slices(body, len(payloads), start, count)) == payloads[start : start + count]


def test_a_body_is_offsets_and_payloads_in_arrows_layout() -> None:
    assert pack_body([b"ab", b"", b"c"], [2, 0, 1]) == (
        b"\x00\x00\x00\x00\x02\x00\x00\x00\x02\x00\x00\x00\x03\x00\x00\x00abc"
    )


@given(st.lists(payload_lists, min_size=1, max_size=6), st.booleans(), st.data())
def test_any_stretch_can_be_sliced_across_segments(
    batches: list[list[bytes]], sealed: bool, data: st.DataObject
) -> None:
    log, wanted = Log(0), []
    for number, batch in enumerate(batches):
        logs.append(log, batch, list(map(len, batch)), sum(map(len, batch)), 100 + number)
        wanted += batch
        if sealed or number % 2:
            for segment in log.segments:
                if segment.payloads is not None:
                    logs.seal(segment, number + 1)
            log.forming = None
    first = data.draw(st.integers(0, len(wanted) - 1))
    count = data.draw(st.integers(1, len(wanted) - first))
    found = logs.pieces(log, first, count, logs.find(log, first))
    assert [bytes(each) for piece in found for each in piece.payloads()] == wanted[first : first + count]


def test_a_merged_segment_is_read_run_by_run() -> None:
    payloads = [b"a", b"b", b"c", b"d", b"e"]
    packed = pack_runs([Run(2, 100), Run(1, 100), Run(2, 300)], 100)
    log = logs.load(10, [Segment(10, 5, 5, 100, 1, packed.spread)])
    assert log.segments[0].runs == (Run(3, 100), Run(2, 300))
    log.segments[0].body = pack_body(payloads, [1] * 5)
    found = [(piece.offset, piece.count, piece.created_at) for piece in logs.pieces(log, 11, 4, 0)]
    assert found == [(11, 2, 100), (13, 2, 300)]
    assert logs.offset_at(log, 100) == 10
    assert logs.offset_at(log, 101) == 13
    assert logs.offset_at(log, 301) == log.end == 15


def test_a_pop_from_merged_runs_keeps_each_message_with_its_time() -> None:
    core = Core()
    core.push(b"1", b"2", b"3")
    core.commit()
    segment = segments(core)[0]
    segment.spread = pack_runs([Run(1, core.now), Run(2, core.now + 7)], core.now).spread
    reply = core.pop(3)
    assert [(each.count, each.created_at) for each in reply.deliveries] == [(1, core.now), (2, core.now + 7)]
    assert [each.first - reply.deliveries[0].first for each in reply.deliveries] == [0, 1]


def test_trim_drops_whole_sealed_segments_only() -> None:
    log = Log(0)
    for number in range(3):
        logs.append(log, [b"x"] * 4, [1] * 4, 4, number)
        if number < 2:
            logs.seal(log.segments[-1], number + 1)
            log.forming = None
    assert [segment.base for segment in logs.trim(log, 7)] == [0]
    assert (log.first, log.end, log.dropped) == (4, 12, 1)
    assert [segment.base for segment in logs.trim(log, 12)] == [4]
    assert (log.first, log.bases) == (8, [8])


def test_the_messages_of_a_header_only_segment_count_for_their_average() -> None:
    core = Core()
    core.push(*[b"x" * 150] * 5, *[b"x" * 50] * 5)
    core.restart()
    assert not segments(core)[0].present
    reply = core.ask(queries.Read("default", "q", 0, max_bytes=250), queries.LogSlice)
    assert [each.segment for each in absent(reply)] == segments(core)
    assert reply.next == 2
    core.pop()  # reads the body
    assert core.ask(queries.Read("default", "q", 0, max_bytes=250), queries.LogSlice).next == 1
    assert core.ask(queries.Read("default", "q", 0, max_bytes=1), queries.LogSlice).next == 1
