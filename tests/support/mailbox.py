"""Servers that notices are delivered to: a mail server and a web server, in threads of the test.

Both can misbehave: take nothing for now, refuse for good, or say nothing at all.
"""

import contextlib
import email
import http.server
import json
import socketserver
import threading
from collections.abc import Iterator
from email.message import Message
from typing import TypeVar

TAKE, LATER, NEVER, HANG = "take", "later", "never", "hang"


class MailServer(socketserver.ThreadingTCPServer):
    """Speaks as much of SMTP as smtplib needs.

    Attributes:
        mood: what it does with a recipient.
        messages: what it has taken: recipients of the envelope, and the message.
        talks: how many connections there were.
    """

    allow_reuse_address = True
    daemon_threads = True

    def __init__(self, port: int = 0, mood: str = TAKE) -> None:
        super().__init__(("127.0.0.1", port), _Talk)
        self.mood = mood
        self.messages: list[tuple[list[str], Message]] = []
        self.talks = 0
        self.closing = threading.Event()

    @property
    def port(self) -> int:
        """Return where it listens."""
        return int(self.server_address[1])


class _Talk(socketserver.StreamRequestHandler):
    server: MailServer  # type: ignore[mutable-override]  # it is made with this one

    def handle(self) -> None:
        self.server.talks += 1
        if self.server.mood == HANG:
            self.server.closing.wait(60)
            return
        self._say("220 test")
        recipients: list[str] = []
        while line := self.rfile.readline().decode("ascii").strip():
            word = line.split(":")[0].upper()
            if word == "QUIT":
                self._say("221 bye")
                return
            if word == "RCPT TO":
                if self.server.mood != TAKE:
                    self._say("450 not now" if self.server.mood == LATER else "550 no such user")
                    continue
                recipients.append(line.partition(":")[2].strip("<> "))
            if word == "DATA":
                self._say("354 go on")
                content = b""
                while (part := self.rfile.readline()) != b".\r\n":
                    content += part.removeprefix(b".") if part.startswith(b"..") else part
                self.server.messages.append((recipients, email.message_from_bytes(content)))
                recipients = []
            self._say("250 ok")

    def _say(self, text: str) -> None:
        self.wfile.write(f"{text}\r\n".encode())


class WebServer(http.server.ThreadingHTTPServer):
    """Takes posts; ``status`` is what it answers, 0: nothing at all."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Post)
        self.status = 200
        self.posts: list[tuple[str, dict[str, object]]] = []
        self.tries = 0
        self.closing = threading.Event()

    @property
    def origin(self) -> str:
        """Return where it listens, as a URL without a path."""
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Post(http.server.BaseHTTPRequestHandler):
    server: WebServer  # type: ignore[mutable-override]  # it is made with this one

    def do_POST(self) -> None:
        content = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.tries += 1
        if not self.server.status:
            self.server.closing.wait(60)
            return
        if self.server.status == 200:
            self.server.posts.append((self.path, json.loads(content)))
        self.send_response(self.server.status)
        if self.server.status == 302:
            self.send_header("Location", f"{self.server.origin}/elsewhere")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Say nothing."""


Server = TypeVar("Server", MailServer, WebServer)


@contextlib.contextmanager
def serving(server: Server) -> Iterator[Server]:
    """Serve in a thread until the end of the block."""
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server
    finally:
        server.closing.set()
        server.shutdown()
        server.server_close()
        thread.join()
