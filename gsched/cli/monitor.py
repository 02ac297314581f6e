"""The monitor's side of the API, for commands that make reports of the past."""

from collections.abc import Mapping

from gsched.client import HeadClient
from gsched.config.words import monitor_socket_of
from gsched.errors import HeadUnreachableError, UsageError
from gsched.protocol.reports import HeldReply, MailReply, PeriodReport, UsageReply
from gsched.transport import quote

#: A report of a year reads a million rows.
TIMEOUT_S = 300.0


class MonitorClient(HeadClient):
    """Requests of the monitor beside a head.

    Raises:
        UsageError: the head is reached over TCP.
        HeadUnreachableError: by every method, when the monitor does not answer.
    """

    def __init__(self, head: HeadClient):
        address = head.transport.address
        if not address.path:
            raise UsageError(
                f"reports come from a socket on the head's machine, not from {address.text}",
                hint="run the command there, or give --head the path of the head's socket",
            )
        super().__init__(monitor_socket_of(address.path), patience_s=head.transport.patience_s)

    def usage(self, by: str, **wanted: str | float) -> UsageReply:
        """Return jobs that ended within a period, in groups."""
        return self._decode(self.get_text("/v1/usage", by=by, **wanted), UsageReply, "/v1/usage")

    def held(self, **wanted: str | float) -> HeldReply:
        """Return who had CPUs and GPUs within a period."""
        return self._decode(self.get_text("/v1/held", **wanted), HeldReply, "/v1/held")

    def report(self, form: str, **wanted: str | float) -> PeriodReport:
        """Return the report of a period."""
        body = self.get_text("/v1/report", form=form, **wanted)
        return self._decode(body, PeriodReport, "/v1/report")

    def get_text(self, path: str, **wanted: str | float) -> bytes | bytearray:
        """Return the answer to a GET request as it came."""
        return self._request("GET", path, wanted)

    def mail(self, form: str, recipients: str, **wanted: str | float) -> MailReply:
        """Have a report sent by mail."""
        path = "/v1/report/mail"
        sent = self._request("POST", path, {"form": form, "to": recipients, **wanted})
        return self._decode(sent, MailReply, path)

    def _request(
        self, method: str, path: str, wanted: Mapping[str, str | float]
    ) -> bytes | bytearray:
        texts = {name: str(value) for name, value in wanted.items() if value != ""}
        query = "&".join(f"{name}={quote(text)}" for name, text in texts.items())
        try:
            return self._send(method, f"{path}?{query}", timeout_s=TIMEOUT_S)
        except HeadUnreachableError as error:
            raise HeadUnreachableError(
                f"the monitor does not answer at {self.transport.address.path}",
                hint="reports come from the monitor, a process beside gschedd: is it running, and "
                "does [web] of its configuration say enabled = true?",
            ) from error
