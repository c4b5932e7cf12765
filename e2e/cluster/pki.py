"""Keys and certificates of one cluster: an authority, the API server's certificate, the service-account key."""

import datetime as dt
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_LIFETIME = dt.timedelta(days=365)
_IN_CLUSTER_NAMES = ("localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc")


@dataclass(frozen=True)
class Pki:
    """Paths of the PEM files in one folder."""

    folder: Path

    @property
    def authority(self) -> Path:
        """Certificate that clients trust."""
        return self.folder / "ca.crt"

    @property
    def server_certificate(self) -> Path:
        """The API server's certificate."""
        return self.folder / "apiserver.crt"

    @property
    def server_key(self) -> Path:
        """The API server's private key."""
        return self.folder / "apiserver.key"

    @property
    def kubelet_client_certificate(self) -> Path:
        """What the API server shows to kubelets."""
        return self.folder / "kubelet-client.crt"

    @property
    def kubelet_client_key(self) -> Path:
        """Its private key."""
        return self.folder / "kubelet-client.key"

    @property
    def service_account_key(self) -> Path:
        """Private key that signs service-account tokens (its public half verifies them)."""
        return self.folder / "service-account.key"


def create(folder: Path, addresses: Sequence[str]) -> Pki:
    """Write all keys and certificates; the server's is valid for `addresses` and the in-cluster names."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    pki = Pki(folder)
    authority_key, server_key, client_key, account_key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(4))
    authority = _Authority(authority_key, _authority(authority_key))
    names: list[x509.GeneralName] = [x509.DNSName(name) for name in _IN_CLUSTER_NAMES]
    names += [x509.IPAddress(ipaddress.ip_address(address)) for address in addresses]
    server = authority.issue("kube-apiserver", server_key, ExtendedKeyUsageOID.SERVER_AUTH, names)
    client = authority.issue("kube-apiserver-kubelet-client", client_key, ExtendedKeyUsageOID.CLIENT_AUTH, [])
    pki.authority.write_bytes(authority.certificate.public_bytes(Encoding.PEM))
    pki.server_certificate.write_bytes(server)
    pki.kubelet_client_certificate.write_bytes(client)
    _write_key(pki.server_key, server_key)
    _write_key(pki.kubelet_client_key, client_key)
    _write_key(pki.service_account_key, account_key)
    return pki


@dataclass(frozen=True)
class _Authority:
    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    def issue(
        self,
        subject: str,
        key: ec.EllipticCurvePrivateKey,
        usage: x509.ObjectIdentifier,
        names: Sequence[x509.GeneralName],
    ) -> bytes:
        """Sign a certificate for one use; return it as PEM."""
        issuer_key = x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key())
        builder = _builder(subject, key.public_key(), self.certificate.subject)
        builder = builder.add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        builder = builder.add_extension(issuer_key, critical=False)
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return builder.sign(self.key, hashes.SHA256()).public_bytes(Encoding.PEM)


def _builder(subject: str, key: ec.EllipticCurvePublicKey, issuer: x509.Name) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(_name(subject))
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + _LIFETIME)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _authority(key: ec.EllipticCurvePrivateKey) -> x509.Certificate:
    usage = x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=True,
        crl_sign=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
    return (
        _builder("moorage-e2e", key.public_key(), _name("moorage-e2e"))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .sign(key, hashes.SHA256())
    )


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    path.touch(mode=0o600)
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption()))
