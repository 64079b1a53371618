"""What a message is shown with besides its state: how it was pushed, since when it is leased, who waits."""

from forebay.core.api import commands as c
from forebay.core.state import Attributes, Progress
from tests.core.harness import NOW, Core


def test_a_message_is_shown_with_the_attributes_it_was_pushed_with() -> None:
    core = Core()
    having = Attributes(priority=3, ttl_ms=5_000, timeout_ms=700, max_attempts=4, tags=("a",))
    plain, message = core.push(), core.push(attributes=having)
    assert core.find(message).attributes == having
    assert core.find(plain).attributes == Attributes()


def test_a_leased_message_is_shown_with_the_start_of_its_delivery() -> None:
    core = Core()
    message = core.push()
    assert core.find(message).leased_at is None
    core.now += 7
    lease = core.pop().lease
    core.now += 7
    assert core.find(message).leased_at == NOW + 7
    core.ack(lease)
    assert core.find(message).leased_at is None


def test_a_message_is_shown_with_its_progress_and_the_first_that_waits_for_it() -> None:
    core = Core()
    child = core.push()
    assert (core.find(child).progress, core.find(child).parent) == (None, None)
    parent = core.push(depends_on=((child, 1),))
    core.push(depends_on=((child, 1),))
    lease = core.pop().lease
    core.ask(c.TellProgress("default", child, 40, "half"), c.Noted)
    assert core.find(child).progress == Progress(40, "half", NOW)
    assert core.find(child).parent == parent
    core.ack(lease)
    assert core.find(child).parent is None
