"""An OTLP collector for tests: takes all signals over HTTP and gRPC and shows what came.

Prints {"http": port, "grpc": port}; GET /received lists [transport, signal, message], and
GET /delay/SECONDS makes it slow from then on, GET /forget empties the list. Ends when its stdin
closes.
"""

from __future__ import annotations

import gzip
import json
import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc
from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.collector.logs.v1 import logs_service_pb2 as logs
from opentelemetry.proto.collector.logs.v1 import logs_service_pb2_grpc as logs_grpc
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as metrics
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2_grpc as metrics_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as traces
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as traces_grpc

REQUESTS: dict[str, Any] = {
    "traces": traces.ExportTraceServiceRequest,
    "metrics": metrics.ExportMetricsServiceRequest,
    "logs": logs.ExportLogsServiceRequest,
}
received: list[tuple[str, str, Any]] = []
delay_s = [0.0]


def take(transport: str, signal: str, message: Any) -> None:
    time.sleep(delay_s[0])
    received.append((transport, signal, MessageToDict(message)))


class Traces(traces_grpc.TraceServiceServicer):
    def Export(self, request: Any, context: Any) -> Any:
        take("grpc", "traces", request)
        return traces.ExportTraceServiceResponse()


class Metrics(metrics_grpc.MetricsServiceServicer):
    def Export(self, request: Any, context: Any) -> Any:
        take("grpc", "metrics", request)
        return metrics.ExportMetricsServiceResponse()


class Logs(logs_grpc.LogsServiceServicer):
    def Export(self, request: Any, context: Any) -> Any:
        take("grpc", "logs", request)
        return logs.ExportLogsServiceResponse()


class Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        signal = self.path.removeprefix("/v1/")
        take("http", signal, REQUESTS[signal].FromString(body))
        self._answer(b"")

    def do_GET(self) -> None:
        if self.path.startswith("/delay/"):
            delay_s[0] = float(self.path.removeprefix("/delay/"))
        elif self.path == "/forget":
            received.clear()
        self._answer(json.dumps(received).encode())

    def _answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


def main() -> None:
    server = grpc.server(ThreadPoolExecutor(8))
    traces_grpc.add_TraceServiceServicer_to_server(Traces(), server)
    metrics_grpc.add_MetricsServiceServicer_to_server(Metrics(), server)
    logs_grpc.add_LogsServiceServicer_to_server(Logs(), server)
    grpc_port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    web = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=web.serve_forever, daemon=True).start()
    print(json.dumps({"http": web.server_port, "grpc": grpc_port}), flush=True)
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main()
