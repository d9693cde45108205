"""httpx2 for servers of our own, which speak no TLS.

By default each client, and each call without one, reads all the world's certificates: 50 ms.
"""

from __future__ import annotations

from functools import partial

import httpx2

get = partial(httpx2.get, verify=False)
post = partial(httpx2.post, verify=False)
stream = partial(httpx2.stream, verify=False)
Client = partial(httpx2.Client, verify=False)
AsyncClient = partial(httpx2.AsyncClient, verify=False)
