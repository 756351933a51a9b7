"""Which certificates of the cluster's servers are accepted."""

import ssl
from os import PathLike


def trusting(cafile: str | PathLike[str] | None = None, cadata: str | bytes | None = None) -> ssl.SSLContext:
    """Return a context for connections to servers whose certificates an authority of the cluster has signed.

    From Python 3.13 on, authorities without the extension *key usage*, and certificates without *authority key
    identifier*, are refused by default. Authorities made with a plain `openssl req -x509` have none; kubectl and
    kubelets accept them, and a cluster must not be lost by an upgrade of this program's Python. Signature, validity
    and name are verified as ever.

    Args:
        cafile: the authority in PEM; the system's authorities if neither is given.
        cadata: the same as text or DER.

    Raises:
        OSError: the file can't be read, or has no certificate.
        ValueError: the text is no certificate.
    """
    context = ssl.create_default_context(cafile=cafile, cadata=cadata)
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context
