"""What runs on each host: sent there as text, so it uses the standard library of an older Python only.

Says what it is (one JSON line), listens on a port, tries its peers when it is told who they are, and ends.
"""

import hashlib
import json
import os
import platform
import socket
import sys
import threading
import time


def version_of(package):  # type: ignore[no-untyped-def]
    try:
        from importlib import metadata

        return metadata.version(package)
    except Exception:
        return ""


def content_hash(paths):  # type: ignore[no-untyped-def]
    """Names, sizes and contents (of large files: both ends) below the paths; says which path is absent."""
    digest = hashlib.sha256()
    for path in paths:
        if not os.path.exists(path):
            return "absent: " + path
        files = [path] if os.path.isfile(path) else []
        for folder, inner, names in os.walk(path):
            inner[:] = sorted(name for name in inner if not name.startswith((".", "__pycache__")))
            files += [os.path.join(folder, name) for name in sorted(names) if not name.endswith(".pyc")]
        for file in files:
            size = os.path.getsize(file)
            digest.update((os.path.relpath(file, path) + " " + str(size) + "\n").encode())
            with open(file, "rb") as opened:
                digest.update(opened.read(1 << 20))
                if size > 1 << 21:
                    opened.seek(-(1 << 20), 2)
                    digest.update(opened.read())
    return digest.hexdigest()[:12] if paths else ""


def say(**line):  # type: ignore[no-untyped-def]
    sys.stdout.write("@" + json.dumps(line) + "\n")
    sys.stdout.flush()


def listen(port):  # type: ignore[no-untyped-def]
    server = socket.socket(socket.AF_INET6 if socket.has_ipv6 else socket.AF_INET)
    if socket.has_ipv6:
        server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.bind(("", port))
    server.listen(128)
    return server


def accept(server):  # type: ignore[no-untyped-def]
    while True:
        try:
            connection = server.accept()[0]
        except OSError:
            return
        connection.sendall(b"headway\n")
        connection.close()


def reach(address, port):  # type: ignore[no-untyped-def]
    """Milliseconds until the peer's own greeting arrived, or why not."""
    start = time.time()
    try:
        connection = socket.create_connection((address, port), timeout=4)
        greeting = connection.recv(16)
        connection.close()
    except OSError as error:
        return str(error) or type(error).__name__
    return (time.time() - start) * 1000 if greeting.startswith(b"headway") else "another program answers there"


def main():  # type: ignore[no-untyped-def]
    asked = json.loads(sys.stdin.readline())
    facts = {package: version_of(package) for package in asked["packages"]}
    facts.update(
        python=platform.python_version(),
        code=content_hash(asked["code"]),
        data=content_hash(asked["data"]),
    )
    problem = ""
    try:
        server = listen(asked["port"])
        thread = threading.Thread(target=accept, args=(server,))
        thread.daemon = True
        thread.start()
    except OSError as error:
        problem = str(error)
    say(facts=facts, host=socket.gethostname(), clock=time.time(), executable=sys.executable, port_problem=problem)
    peers = json.loads(sys.stdin.readline() or "[]")
    say(reached={peer: reach(peer, asked["port"]) for peer in peers})
    sys.stdin.readline()


if __name__ == "__main__":
    main()
