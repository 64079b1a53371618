"""Exactly once: orders become invoices, while the program that does it is killed again and again.

The ack of the order, the push of its invoice and the sum of all of them are one transaction: all of it is
done, or nothing. Whoever dies before it has done nothing, and whoever dies after it is done.
"""

import os
import signal
import subprocess
import sys

from forebay.client.sync.client import SyncClient

ORDERS, INVOICES = "exactly-once-orders", "exactly-once-invoices"
SUM = "exactly-once-sum"
PRICES = [10, 20, 30, 40, 50, 60]


def work(dies: str) -> None:
    """Turn orders into invoices, two at a time, until all are invoiced; or be killed on the way."""
    with SyncClient() as client:
        while client.kv.get(SUM, 0) < sum(PRICES):
            batch = client.pop(ORDERS, 2, wait_ms=1_000, lease_ms=1_000)
            if not batch:
                continue  # a lease of one who died is not over yet
            with client.transaction() as together:
                for order in batch:
                    together.push(INVOICES, {"order": order.id, "price": order.payload["price"]})
                together.add(SUM, sum(order.payload["price"] for order in batch))
                together.ack(batch)
                if dies == "before":
                    os.kill(os.getpid(), signal.SIGKILL)
            if dies == "after":
                os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    with SyncClient() as client:
        client.configure(ORDERS, on_lease_expiry="requeue")  # to die is no failure of the order
        client.kv.set(SUM, 0)
        orders = client.push_many(ORDERS, [{"price": price} for price in PRICES])

        for dies in ("before", "after", "never"):
            code = subprocess.run([sys.executable, __file__, dies]).returncode
            how = f"was killed {dies} its commit" if code == -signal.SIGKILL else f"ended with {code}"
            print(f"the program {how}; the sum is {client.kv.get(SUM)}")

        with client.leased(INVOICES, 100) as invoices:
            invoiced = sorted(invoice.payload["order"] for invoice in invoices)
        print("every order has one invoice:", invoiced == sorted(orders.ids))
        print("nothing is left:", not client.pop(ORDERS))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        work(sys.argv[1])
    else:
        main()
