"""flashQ's webhooks: registered here, kept and delivered like the native ones; and incoming requests."""

from collections.abc import Callable, Iterable

import msgspec
from msgspec import UNSET, Raw, Struct

from forebay.core import ids
from forebay.core.api.principals import OWNER
from forebay.core.errors import ForebayError, NotFound
from forebay.server.flashq.events import KINDS, OURS, JobEvent, job_events
from forebay.server.flashq.web import several
from forebay.server.flashq.web.calls import Call
from forebay.server.flashq.web.commands import Refused, refused
from forebay.server.flashq.web.details import Details, payload_of
from forebay.server.flashq.web.routes import Route
from forebay.server.http.endpoint import ACT
from forebay.server.http.headers import header
from forebay.server.http.incoming import payload_of as payload_of_body
from forebay.server.node_client import NodeClient
from forebay.server.tcp.codec import Services
from forebay.server.webhooks.courier import Webhook
from forebay.server.webhooks.registry import new_id, new_secret
from forebay.server.webhooks.signatures import OTHERS, is_signed, signature

_encode = msgspec.json.Encoder().encode

ALWAYS = "*"
SIGNATURES = ("x-flashq-signature", *OTHERS)
"""Headers in which the sender of an incoming request may sign it."""
FORM = "flashq"
"""Name of flashQ's form of deliveries; it is stored with each webhook."""


class Registration(Struct, gc=False):
    """A webhook to register."""

    url: str
    events: list[str]
    queue: str | None = None
    secret: str | None = None


class Registered(Struct, gc=False):
    """A webhook as it is listed: its secret is not shown again."""

    id: str
    url: str
    events: list[str]
    queue: str | None
    secret: str | None
    created_at: int


def kinds_of(events: list[str]) -> list[str]:
    """Return our kinds of flashQ's events, which come as completed, job.completed or job:completed.

    >>> kinds_of(["job.completed", "failed"]), kinds_of(["*"])
    (['settled', 'dead'], ['pushed', 'settled', 'dead', 'progressed'])
    """
    if ALWAYS in events:
        return list(OURS.values())
    names = [each.removeprefix("job.").removeprefix("job:") for each in events]
    unknown = [each for each in names if each not in OURS]
    if unknown or not names:
        raise Refused(400, f"events must be some of {', '.join(OURS)} or {ALWAYS}: webhooks get no others")
    return [OURS[each] for each in names]


class PostedEvent(JobEvent, gc=False, kw_only=True, omit_defaults=False):
    """An event of one job as it is posted: what it does not have is null."""

    data: Raw | None = None
    error: str | None = None
    duration_ms: int | None = None


_posted = msgspec.json.Decoder(PostedEvent).decode


class FlashqForm:
    """Deliveries as flashQ posts them: one event of one job each, signed with an HMAC of the body."""

    def __init__(self, questions: NodeClient) -> None:
        self._questions = questions

    def spread(self, event: bytes) -> Iterable[bytes]:
        return map(_encode, job_events(event))

    async def body(self, tenant: str, delivery: bytes) -> bytes:
        details = Details(self._questions, tenant)
        try:
            event = _posted(delivery)
        except msgspec.ValidationError:  # it tells of events that were lost, and of no job
            return delivery
        job = ids.parse(event.job_id)
        if event.event_type == "completed":
            event.data = (await details.results([job])).get(job)
        elif found := (await details.shown([job])).get(job):
            if event.event_type == "pushed":
                data = payload_of(found)
                event.data = None if data is UNSET else data
            elif event.event_type == "failed":
                event.error = found.state.error or None
        return _encode(event)

    def headers(self, secret: str, body: bytes) -> dict[str, str]:
        return {"X-FlashQ-Signature": signature(secret, body).removeprefix("sha256=")}


class WebhookRoutes:
    """Answers requests about webhooks."""

    def __init__(self, services: Services, secret: str, clock: Callable[[], int]) -> None:
        self._webhooks, self._secret, self._clock = services.webhooks, secret, clock
        self._webhooks.add_form(FORM, FlashqForm(services.questions))

    def routes(self) -> list[Route]:
        return [
            Route("GET", "/webhooks", self.list, "List webhooks.", needs=(OWNER,)),
            Route("POST", "/webhooks", self.register, "Post events to a URL from now on.", needs=(OWNER,)),
            Route("POST", "/webhooks/incoming/{queue}", self.incoming, "Push the body as a job."),
            Route("DELETE", "/webhooks/{id}", self.delete, "Delete a webhook.", needs=(OWNER,)),
        ]

    async def list(self, call: Call) -> Raw:
        try:
            found = await self._webhooks.all(call.context.tenant)
        except ForebayError as error:
            raise refused(error) from None
        return Raw(
            _encode(
                [
                    Registered(
                        each.id,
                        each.url,
                        [KINDS[kind] for kind in each.kinds if kind in KINDS] or [ALWAYS],
                        each.queues[0] if each.queues else None,
                        None,
                        each.created_at,
                    )
                    for each, _ in found
                ]
            )
        )

    async def register(self, call: Call) -> Raw:
        call.scope[ACT] = "WEBHOOKPUT"
        given: Registration = await call.read(Registration)
        webhook = Webhook(
            id=new_id(),
            tenant=call.context.tenant,
            url=given.url,
            secret=new_secret() if given.secret is None else given.secret,
            queues=[] if given.queue is None else [given.queue],
            kinds=kinds_of(given.events),
            form=FORM,
        )
        try:
            await self._webhooks.register(webhook)
        except ForebayError as error:
            raise refused(error) from None
        return Raw(_encode(webhook.id))

    async def delete(self, call: Call) -> Raw:
        call.scope[ACT] = "WEBHOOKDELETE"
        try:
            await self._webhooks.delete(call.context.tenant, call.path["id"])
        except NotFound:
            return Raw(b"false")
        except ForebayError as error:
            raise refused(error) from None
        return Raw(b"true")

    async def incoming(self, call: Call) -> Raw:
        """Push the body of a request that is signed, if a secret is set."""
        body = await call.body()
        scope = call.scope

        def text_of(name: str) -> str:
            return header(scope, name.encode()).decode("latin-1")

        if self._secret and not is_signed(self._secret, body, text_of, self._clock(), SIGNATURES):
            raise Refused(401, "The signature is missing or not that of this server's webhook secret")
        try:
            payload, _ = payload_of_body(body, text_of("content-type"))
        except ForebayError as error:
            raise refused(error) from None
        return await several.pushed(call, {"data": Raw(payload)})
