"""The page's files, held in memory: what is not among them cannot be asked for."""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

FOLDER = Path(__file__).parent.parent / "web"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".md": "text/plain; charset=utf-8",
    ".LICENSE": "text/plain; charset=utf-8",
}
HEADERS = {
    # asked for again each time, and answered 304: a new version shows at once
    "Cache-Control": "no-cache",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    # the browser itself makes sure that nothing is asked of anybody else
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data: blob:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "Vary": "Accept-Encoding",
}


@dataclass(frozen=True, slots=True)
class File:
    """One file of the page. `packed` is the same with gzip."""

    content: bytes
    packed: bytes
    media_type: str
    tag: str

    def answer(self, request: Request) -> Response:
        """The file, or 304 for a browser that has it."""
        # weak: the same file, packed or not
        headers = {**HEADERS, "ETag": f"W/{self.tag}"}
        if self.tag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        if "gzip" in request.headers.get("accept-encoding", ""):
            headers["Content-Encoding"] = "gzip"
            return Response(self.packed, headers=headers, media_type=self.media_type)
        return Response(self.content, headers=headers, media_type=self.media_type)


@cache
def read_files(folder: Path = FOLDER) -> dict[str, File]:
    """Every file of the page by its path in `folder`, with forward slashes."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.suffix in TYPES:
            found[path.relative_to(folder).as_posix()] = _read(path)
    return found


def _read(path: Path) -> File:
    content = path.read_bytes()
    tag = '"' + hashlib.blake2b(content, digest_size=12).hexdigest() + '"'
    return File(content, gzip.compress(content, mtime=0), TYPES[path.suffix], tag)
