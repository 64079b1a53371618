"""As much of curl as the pages use, for machines that have none."""

import argparse
import http.client
import sys
from urllib.parse import urlsplit


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("-s", "-S", "--silent", action="store_true")
    parser.add_argument("--fail-with-body", action="store_true")
    parser.add_argument("-X", dest="method")
    parser.add_argument("-H", dest="headers", action="append", default=[])
    parser.add_argument("-d", "--data-binary", dest="body")
    asked = parser.parse_args()
    body = sys.stdin.buffer.read() if asked.body == "@-" else asked.body
    headers = {name: value.strip() for name, _, value in (each.partition(":") for each in asked.headers)}
    url = urlsplit(f"http://{asked.url}")
    connection = http.client.HTTPConnection(url.netloc, timeout=30)
    path = f"{url.path}?{url.query}" if url.query else url.path
    connection.request(asked.method or ("GET" if body is None else "POST"), path, body, headers)
    answer = connection.getresponse()
    sys.stdout.buffer.write(answer.read())
    connection.close()
    return 22 if asked.fail_with_body and answer.status >= 400 else 0


if __name__ == "__main__":
    sys.exit(main())
