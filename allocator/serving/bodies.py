"""The bodies of questions over HTTP."""

from aiohttp import web


async def read_body(request: web.Request) -> bytes:
    """A question's body.

    Raises:
        web.HTTPBadRequest: it is packed; neither kube-scheduler nor the API server packs a question.
        web.HTTPRequestEntityTooLarge: it is larger than the application takes.
    """
    encoding = request.headers.get("Content-Encoding", "identity")
    if encoding != "identity":
        raise web.HTTPBadRequest(text=f"Content-Encoding is {encoding!r}; questions are not to be packed\n")
    return await request.read()
