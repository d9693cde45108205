"""What `helm test` asks a release: is it ready, and with a key, does it answer?"""

import json
import os
import ssl
import urllib.request

URL, KEY = os.environ["HARMONIUM_URL"], os.environ.get("HARMONIUM_KEY", "")
# The test reaches the Service by its name inside the cluster; the certificate may name another.
CONTEXT = ssl._create_unverified_context()


def ask(path: str, body: dict[str, object] | None = None) -> dict[str, object]:
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    if KEY:
        headers["Authorization"] = f"Bearer {KEY}"
    request = urllib.request.Request(URL + path, data, headers)
    with urllib.request.urlopen(request, timeout=120, context=CONTEXT) as answer:
        return json.load(answer)


print(ask("/v1/health/ready"))
if KEY or os.environ.get("HARMONIUM_OPEN"):
    model = ask("/v1/models")["data"][0]["id"]
    message = {"role": "user", "content": "Hello!"}
    print(ask("/v1/chat/completions", {"model": model, "messages": [message], "max_tokens": 64}))
else:
    print("No key: set tests.keySecret to test an answer as well.")
