"""Stands in for ``sglang.launch_server``: answers as the serve check expects, but for the one fault in ``FAULT``."""

import json
import os
import signal
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

FAULT = os.environ.get("FAULT", "")
STATE = {"requests": 0, "flushed": False, "left": False, "used": 0}


class Handler(BaseHTTPRequestHandler):
    """One answer per path of the real server."""

    def log_message(self, *_: Any) -> None:
        """Quiet."""

    def do_GET(self) -> None:
        if self.path == "/health":
            self._json({})
        elif self.path == "/server_info":
            dtype = "bfloat16" if FAULT == "flag" else "float32"
            self._json({"device": "cpu", "attention_backend": "torch_native", "dtype": dtype, "max_total_tokens": 9000})
        else:
            if FAULT == "cancel" and STATE["left"] and STATE["used"] < 7000:
                STATE["used"] += 1000
                self._json({"loads": [{"num_running_reqs": 1, "num_used_tokens": STATE["used"]}]})
            else:
                self._json({"loads": [{"num_running_reqs": 0, "num_used_tokens": 0}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        path, _, query = self.path.partition("?")
        if path == "/flush_cache":
            # As the scheduler does while it still counts the request that was just answered.
            refused = FAULT == "flush-refused" or not query.startswith("timeout=")
            STATE["flushed"] = not refused
            self._json({}, 400 if refused else 200)
        elif not body.get("stream"):
            STATE["requests"] += 1
            self._json({"output_ids": self._tokens(body["sampling_params"]["max_new_tokens"])})
        elif f"dies-in-{self.path}" == FAULT:
            self._break_off()
        elif self.path == "/v1/completions":
            self._completion(body["max_tokens"])
        else:
            STATE["left"] = True
            self._events(["{}"] * (1 if FAULT == "short" else 3))

    def _tokens(self, count: int) -> list[int]:
        if FAULT == "constant":
            return [0] * count
        wrong = {
            "repeat": STATE["requests"] == 4,
            "after-flush": STATE["flushed"] and not STATE["left"],
            "after-cancel": STATE["left"],
        }
        return [int(wrong.get(FAULT, False)), *range(1, count)]

    def _completion(self, count: int) -> None:
        texts = ['{"choices": [{"text": "a"}]}'] * (1 if FAULT == "whole" else 3)
        usage = json.dumps({"choices": [], "usage": {"completion_tokens": count - (FAULT == "usage")}})
        self._events([*texts, usage, *([] if FAULT == "no-end" else ["[DONE]"])])

    def _events(self, events: list[str]) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write("".join(f"data: {event}\n\n" for event in events).encode())

    def _break_off(self) -> None:
        """End the process in the middle of a chunk, which holds one whole event."""
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.write(b"ff\r\ndata: {}\n\ndata: ")
        print("Segmentation fault", flush=True)
        print("a line of the dump\n" * 100, flush=True)
        os._exit(139)

    def _json(self, value: Any, status: int = 200) -> None:
        content = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


def stop(*_: Any) -> None:
    """End as a release does, or as none should."""
    if FAULT == "crash-at-stop":
        os._exit(139)
    if FAULT in ("SIGABRT", "SIGKILL", "SIGSEGV"):
        os.kill(os.getpid(), signal.Signals[FAULT])
    sys.exit(0)


def main() -> None:
    """Serve until SIGTERM."""
    print("the first line", flush=True)
    if FAULT == "start":
        print("ImportError: a kernel is missing")
        sys.exit(3)
    if FAULT == "child" and os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(60)
    signal.signal(signal.SIGTERM, signal.SIG_IGN if FAULT == "stop" else stop)
    port = int(sys.argv[sys.argv.index("--port") + 1])
    ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()


if __name__ == "__main__":
    main()
