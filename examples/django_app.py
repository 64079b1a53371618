"""Django: a view that pushes a job when its transaction is committed, and not if it is rolled back.

A push inside of the transaction could run before the order is there to be seen, or though it never will be.
One file stands for a project here: settings, a model, a task, a view, and visitors. In yours, tasks have a
module that calls ``django.setup()`` before it imports models: ``forebay worker shop.tasks:app``
"""

import asyncio
import json
import tempfile

import django
from django.conf import settings
from django.db import connection, models, transaction
from django.http import HttpRequest, JsonResponse
from django.test import Client as Browser
from django.urls import path

from forebay.client.tasks.app import App
from forebay.client.tasks.task import Job
from forebay.client.worker.worker import Worker

HOME = tempfile.TemporaryDirectory()
DATABASE = {"ENGINE": "django.db.backends.sqlite3", "NAME": f"{HOME.name}/shop.sqlite3"}
settings.configure(ROOT_URLCONF=__name__, ALLOWED_HOSTS=["*"], DATABASES={"default": DATABASE})
django.setup()

app = App("django")


class Order(models.Model):
    customer = models.TextField()

    class Meta:
        app_label = "shop"


@app.task
def mail(order_id: int) -> str:
    """Runs in a thread of a worker, where Django's blocking calls belong; and reads what was committed."""
    try:
        return f"mailed {Order.objects.get(id=order_id).customer}"
    finally:
        connection.close()  # each thread has its own


jobs: list[Job[str]] = []


def buy(request: HttpRequest) -> JsonResponse:
    wanted = json.loads(request.body)
    try:
        with transaction.atomic():
            order = Order.objects.create(customer=wanted["customer"])
            transaction.on_commit(lambda: jobs.append(mail.push(order.id)))
            if wanted["pieces"] > 10:
                raise ValueError("so many are not in stock")
    except ValueError as error:
        return JsonResponse({"error": str(error)}, status=409)
    return JsonResponse({"order": order.id}, status=201)


urlpatterns = [path("orders", buy)]


async def work() -> None:
    worker = Worker(app)
    async with asyncio.TaskGroup() as background:
        background.create_task(worker.run())
        for job in jobs:
            print("the worker:", await job.aresult())
        worker.stop()


if __name__ == "__main__":
    with connection.schema_editor() as schema:
        schema.create_model(Order)
    for customer, pieces in (("ada", 3), ("alan", 11), ("grace", 1)):
        said = Browser().post("/orders", {"customer": customer, "pieces": pieces}, "application/json")
        print(f"{customer} orders {pieces}: {said.status_code}")
    print(f"{Order.objects.count()} orders were kept, {len(jobs)} jobs pushed")
    asyncio.run(work())
    app.close()
    HOME.cleanup()
