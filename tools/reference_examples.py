"""Examples of docs/REFERENCE.md, by class or function. A test runs each against a server of its own."""

TASKS = """import forebay

app = forebay.App("mails")


@app.task(retry=5)
def send(to: str) -> str:
    return f"sent to {to}"
"""

CLIENT = """import forebay

with forebay.SyncClient() as client:
"""


def _with_client(*lines: str) -> str:
    return CLIENT + "".join(f"    {line}\n" for line in lines)


EXAMPLES = {
    "App": TASKS + '\n\nprint(send("ada"))  # sent to ada\n',
    "Task": TASKS
    + '\n\nids = send.push_many(["ada", "alan"])\njob = send.options(delay_ms=60_000).push("grace")\n',
    "Job": TASKS + '\n\njob = send.push("ada")\nprint(job.state())  # waiting\njob.cancel()\n',
    "Call": TASKS + '\n\njob = send.call("ada").with_options(priority=9).push()\n',
    "Retry": """import forebay

app = forebay.App("mails", retry=forebay.Retry(max_attempts=8, base_ms=500))
""",
    "Flow": TASKS
    + """

@app.task
def report(sent: list[str]) -> int:
    return len(sent)


flow = forebay.group([send.call("ada"), send.call("alan")], report.then())
job = flow.push()
""",
    "Run": TASKS
    + """

@app.middleware
async def timed(run, go_on):
    print(run.id, run.task.name, run.attempt)
    return await go_on()
""",
    "Worker": TASKS
    + """

async def main():
    async with forebay.Worker(app, concurrency=4):
        job = await send.apush("ada")
        print(await job.aresult())  # sent to ada


import asyncio

asyncio.run(main())
""",
    "SyncClient": _with_client(
        'client.push("emails", {"to": "ada"}, priority=5)',
        'for seen in client.browse("emails", state="waiting"):',
        "    print(seen.payload)  # {'to': 'ada'}",
    ),
    "Batch": _with_client(
        'client.push_many("numbers", range(3))',
        'batch = client.pop("numbers", 3)',
        "print(batch.payloads)  # [0, 1, 2]",
        "client.ack(batch)",
    ),
    "New": _with_client(
        'client.push_many("emails", ["usual", forebay.New("urgent", {"priority": 9})])',
    ),
    "Values": _with_client(
        'client.kv.set("greeting", "hello")',
        'print(client.kv.get("greeting"))  # hello',
    ),
    "Transaction": _with_client(
        'client.push("orders", 1)',
        'batch = client.pop("orders")',
        "with client.transaction() as together:",
        "    together.ack(batch)",
        '    together.push("invoices", 1)',
    ),
    "Invalid": _with_client(
        "try:",
        '    client.push("emails", 1, ttl_ms=-1)',
        "except forebay.Invalid as error:",
        "    print(error.field)  # ttl_ms",
    ),
}
