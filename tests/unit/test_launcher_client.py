"""What gnode tells the launcher of exit records that it has made durable."""

import asyncio
from pathlib import Path

from gnode.core.task import AttemptKey
from gnode.daemon.launching import LauncherClient, LaunchRules

OLD = b'{"ended": "1.1", "pid": 7, "record": {}}\n'
NEW = b'{"ended": "2.1", "pid": 7, "record": {}, "unflushed": true}\n'


async def messages_after(directory: Path, *lines: bytes) -> bytes:
    """Return the messages to a launcher that sends these ends, each of which is then confirmed."""
    ended: asyncio.Queue[AttemptKey] = asyncio.Queue()
    messages = bytearray()
    launched = asyncio.Event()
    writers: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        await reader.readline()  # the rules
        writer.write(b"".join(lines))
        while chunk := await reader.read(1 << 16):
            messages.extend(chunk)
            if b"launch" in messages:
                launched.set()

    server = await asyncio.start_unix_server(serve, directory / "launcher.sock")
    client = LauncherClient(
        str(directory),
        lambda _: None,
        lambda key, _record, _info: ended.put_nowait(key),
        lambda _: None,
        LaunchRules(),
    )
    running = asyncio.create_task(client.run())
    for _ in lines:
        client.kept(await asyncio.wait_for(ended.get(), 20.0))
    client.ask(AttemptKey(9, 1))
    client.flush()
    await asyncio.wait_for(launched.wait(), 20.0)
    running.cancel()
    server.close()
    (writer,) = writers
    writer.close()
    await writer.wait_closed()
    for _ in range(5):  # the client sees the end and closes its own side
        await asyncio.sleep(0)
    return bytes(messages)


def test_durable_records_are_confirmed_with_the_next_launch(tmp_path: Path) -> None:
    messages = asyncio.run(messages_after(tmp_path, NEW))

    assert messages == b'{"launch":"9.1"}\n{"kept":["2.1"]}\n'


def test_a_launcher_of_before_hears_nothing_that_it_does_not_know(tmp_path: Path) -> None:
    assert asyncio.run(messages_after(tmp_path, OLD)) == b'{"launch":"9.1"}\n'
