"""Imports of a daemon without the unused parts of its libraries."""

import gc
import subprocess
import sys

import pytest

from ascend.daemon.lean import lean_imports


@pytest.mark.parametrize("before", [None, "/some/authorities.pem"])
def test_everything_can_be_imported_after_the_block(monkeypatch: pytest.MonkeyPatch, before: str | None) -> None:
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    if before is not None:
        monkeypatch.setenv("SSL_CERT_FILE", before)
    program = (
        "import gc, os, sys\n"
        "from ascend.daemon.lean import lean_imports\n"
        "with lean_imports():\n"
        "    import structlog, aiohttp\n"
        "    assert not gc.isenabled()\n"
        f"assert os.environ.get('SSL_CERT_FILE') == {before!r}\n"
        "assert gc.isenabled() and gc.get_freeze_count() > 10_000\n"
        "assert aiohttp.connector._SSL_CONTEXT_VERIFIED.cert_store_stats()['x509'] == 0\n"
        "assert 'rich' not in sys.modules\n"
        "import rich.console\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr


def test_a_failed_import_restores_the_state() -> None:
    __import__("rich")
    with pytest.raises(ModuleNotFoundError), lean_imports():
        __import__("no_such_module")
    gc.unfreeze()
    assert gc.isenabled()
    assert sys.modules["rich"] is not None
