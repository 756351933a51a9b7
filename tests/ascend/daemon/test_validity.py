"""When a certificate ends, and when it should have been renewed."""

import ssl
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ascend.daemon.validity import Validity, validity_in
from ascend.errors import InvalidValue
from tests.allocator.authority import Authority

DAY_S = 86_400.0


def openssl_says(cert: Path) -> Validity:
    said = subprocess.run(
        ["openssl", "x509", "-noout", "-dates", "-in", str(cert)], capture_output=True, text=True, check=True
    ).stdout
    begins, ends = (line.partition("=")[2] for line in said.splitlines())
    return Validity(ssl.cert_time_to_seconds(begins), ssl.cert_time_to_seconds(ends))


# Times from 2050 on have another form in a certificate.
@pytest.mark.parametrize("days", [1, 400, 20_000])
@pytest.mark.parametrize("rsa", [False, True])
def test_a_certificate_is_read_as_openssl_reads_it(tmp_path: Path, days: int, *, rsa: bool) -> None:
    authority = Authority(tmp_path, days=days, rsa=rsa)
    for cert in (authority.cert, authority.sign("a", "DNS:a", "IP:127.0.0.1").cert):
        assert validity_in(cert) == openssl_says(cert)


def test_of_several_certificates_the_one_counts_that_ends_first(tmp_path: Path) -> None:
    long, short = Authority(tmp_path, "long", days=90), Authority(tmp_path, "short", days=3)
    bundle = tmp_path / "bundle.crt"
    bundle.write_text(f"# long\n{long.cert.read_text()}\nshort:\n{short.cert.read_text()}")
    assert validity_in(bundle) == openssl_says(short.cert)


@pytest.mark.parametrize(("lifetime_days", "before_days"), [(730, 30), (120, 30), (90, 22.5), (1, 0.25)])
def test_a_certificate_should_be_renewed_a_month_or_a_quarter_of_its_life_before(
    lifetime_days: float, before_days: float
) -> None:
    validity = Validity(0.0, lifetime_days * DAY_S)
    assert validity.ends_s - validity.renewal_s == before_days * DAY_S


def test_a_file_without_a_certificate_is_named(tmp_path: Path) -> None:
    file = tmp_path / "a.crt"
    with pytest.raises(InvalidValue, match=r"a\.crt can't be read"):
        validity_in(file)
    file.write_text("nothing")
    with pytest.raises(InvalidValue, match=r"no certificate in .*a\.crt"):
        validity_in(file)


@pytest.fixture(scope="module")
def der(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A certificate."""
    return ssl.PEM_cert_to_DER_cert(Authority(tmp_path_factory.mktemp("authority")).cert.read_text())


@given(data=st.data())
def test_a_damaged_certificate_is_refused_or_read(
    data: st.DataObject, der: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    at = data.draw(st.integers(0, 200))
    damaged = der[:at] + data.draw(st.binary(max_size=4)) + der[at + data.draw(st.integers(0, 4)) :]
    damaged = damaged[: data.draw(st.integers(0, len(damaged)))]
    file = tmp_path_factory.getbasetemp() / "damaged.crt"
    file.write_text(ssl.DER_cert_to_PEM_cert(damaged))
    try:
        validity_in(file)
    except InvalidValue:
        return
