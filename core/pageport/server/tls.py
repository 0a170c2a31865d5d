"""``tls_context``: certificate and key files, checked before anything else is started."""

import ssl
from pathlib import Path

from pageport.errors import ConfigurationError
from pageport.server.config import ServerConfig


def tls_context(config: ServerConfig) -> ssl.SSLContext | None:
    """Load the files of the settings; None: the server speaks plain HTTP.

    Raises:
        ConfigurationError: names the option whose file is missing, holds something else, or does not fit the other.
    """
    if config.ssl_certfile is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    _load_certificate(context, config.ssl_certfile, config.ssl_keyfile)
    if config.ssl_ca_certs is not None:
        _check_holds(config.ssl_ca_certs, "ssl-ca-certs", "CERTIFICATE")
        try:
            context.load_verify_locations(cafile=config.ssl_ca_certs)
        except ssl.SSLError as error:
            raise _unusable("ssl-ca-certs", config.ssl_ca_certs, error) from error
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _load_certificate(context: ssl.SSLContext, certificate: str, key: str | None) -> None:
    _check_holds(certificate, "ssl-certfile", "CERTIFICATE")
    # A certificate's file may hold its key too.
    key_option = "ssl-certfile" if key is None else "ssl-keyfile"
    key_file = certificate if key is None else key
    _check_holds(key_file, key_option, "PRIVATE KEY")

    def ask_nobody() -> str:
        raise ConfigurationError(
            f"--{key_option}: the key in {key_file} is encrypted, and nobody is there to ask for its password. "
            "Write it unencrypted (openssl pkey) to a file that only the server may read."
        )

    try:
        context.load_cert_chain(certificate, key, ask_nobody)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise ConfigurationError(
                f"--{key_option}: the key in {key_file} is not the one of the certificate in {certificate}. "
                "Name the two files that were made together; the server's own certificate comes first in its file."
            ) from error
        raise _unusable("ssl-certfile", certificate, error) from error


def _check_holds(file: str, option: str, what: str) -> None:
    try:
        content = Path(file).read_bytes()
    except OSError as error:
        raise ConfigurationError(f"--{option}: {file} cannot be read: {error.strerror}. Name a PEM file.") from error
    if f"{what}-----".encode() not in content:
        raise ConfigurationError(
            f"--{option}: {file} holds no {what.lower()} in PEM form (-----BEGIN … {what}-----). Name another file."
        )


def _unusable(option: str, file: str, error: ssl.SSLError) -> ConfigurationError:
    reason = (error.reason or str(error)).replace("_", " ").lower()
    return ConfigurationError(f"--{option}: {file} cannot be used: {reason}. Make the file anew.")
