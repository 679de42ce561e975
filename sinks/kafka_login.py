"""How a connection logs in to Kafka: the properties of Java's clients and of librdkafka for each way to do it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ematix_flow.connections import KafkaConnection
from ematix_flow.errors import FlowError
from ematix_flow.sinks import kafka_tokens

Properties = dict[str, Any]

_MECHANISMS = {"sha-256": "SCRAM-SHA-256", "sha-512": "SCRAM-SHA-512"}
_MODULES = "org.apache.kafka.common.security"
_LOGIN_MODULES = {
    "PLAIN": f"{_MODULES}.plain.PlainLoginModule",
    "SCRAM-SHA-256": f"{_MODULES}.scram.ScramLoginModule",
    "SCRAM-SHA-512": f"{_MODULES}.scram.ScramLoginModule",
}


class KafkaRefused(FlowError):
    """The cluster does not let this client in, or does not let it do what it has to do."""

    code = "kafka-refused"


def java_login(connection: KafkaConnection) -> Properties:
    own = _protocol(connection)
    if user := _user(connection):
        mechanism, name, password = user
        module, words = _LOGIN_MODULES[mechanism], f'username="{_quoted(name)}" password="{_quoted(password)}"'
        own |= {"sasl.mechanism": mechanism, "sasl.jaas.config": f"{module} required {words};"}
    elif connection.msk_iam_region:
        iam = "software.amazon.msk.auth.iam"
        own |= {
            "sasl.mechanism": "AWS_MSK_IAM",
            "sasl.jaas.config": f"{iam}.IAMLoginModule required;",
            "sasl.client.callback.handler.class": f"{iam}.IAMClientCallbackHandler",
        }
    elif connection.sasl_oauth_provider:
        place = kafka_tokens.endpoint(connection.sasl_oauth_provider)
        words = f'clientId="{place.user}" clientSecret="{place.password}"'
        own |= {
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.jaas.config": f"{_MODULES}.oauthbearer.OAuthBearerLoginModule required {words};",
            "sasl.login.callback.handler.class": f"{_MODULES}.oauthbearer.OAuthBearerLoginCallbackHandler",
            "sasl.oauthbearer.token.endpoint.url": place.url,
        }
    if connection.ssl_ca:
        own |= {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": _pem(connection.ssl_ca, "ssl_ca")}
    if connection.ssl_cert and connection.ssl_key:
        key = _pem(connection.ssl_key, "ssl_key")
        if "BEGIN PRIVATE KEY" not in key and "BEGIN ENCRYPTED PRIVATE KEY" not in key:
            raise KafkaRefused(
                f"ssl_key: {connection.ssl_key} is no private key in PKCS#8 form, which Kafka's clients need",
                next_step=f"openssl pkcs8 -topk8 -nocrypt -in {connection.ssl_key} -out new.pem",
            )
        own |= {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.key": key,
            "ssl.keystore.certificate.chain": _pem(connection.ssl_cert, "ssl_cert"),
        }
    return own


def librdkafka_login(connection: KafkaConnection) -> Properties:
    own = _protocol(connection)
    if user := _user(connection):
        mechanism, name, password = user
        own |= {"sasl.mechanisms": mechanism, "sasl.username": name, "sasl.password": password}
    elif provider := _token_provider(connection):
        own |= {"sasl.mechanisms": "OAUTHBEARER", "oauth_cb": provider}
    files = {
        "ssl.ca.location": connection.ssl_ca,
        "ssl.certificate.location": connection.ssl_cert,
        "ssl.key.location": connection.ssl_key,
    }
    for name in ("ssl_ca", "ssl_cert", "ssl_key"):
        if path := getattr(connection, name):
            _pem(path, name)
    return own | {key: value for key, value in files.items() if value}


def check_token(provider: Callable[[str], kafka_tokens.Token]) -> None:
    """That there is none is told before a client asks for it; librdkafka would only say that it waited in vain."""
    try:
        provider("")
    except FlowError:
        raise
    except Exception as error:
        raise KafkaRefused(
            f"there is no token to log in to Kafka with: {error}",
            next_step="see that the credentials of AWS, or of sasl_oauth_provider, are there and valid",
        ) from error


def _token_provider(connection: KafkaConnection) -> Callable[[str], kafka_tokens.Token] | None:
    if connection.msk_iam_region:
        return kafka_tokens.of_msk(connection.msk_iam_region)
    if connection.sasl_oauth_provider:
        return kafka_tokens.of_provider(connection.sasl_oauth_provider)
    return None


def _protocol(connection: KafkaConnection) -> Properties:
    """A secret goes over TLS unless `extra` says otherwise."""
    if _user(connection) or connection.msk_iam_region or connection.sasl_oauth_provider:
        return {"security.protocol": "SASL_SSL"}
    return {"security.protocol": "SSL"} if connection.ssl_ca or connection.ssl_cert else {}


def _user(connection: KafkaConnection) -> tuple[str, str, str] | None:
    """With the mechanism before, and the password after it."""
    if connection.sasl_plain_username and connection.sasl_plain_password:
        return "PLAIN", connection.sasl_plain_username, connection.sasl_plain_password
    if connection.sasl_scram_username and connection.sasl_scram_password and connection.sasl_scram_mechanism:
        mechanism = _MECHANISMS[connection.sasl_scram_mechanism]
        return mechanism, connection.sasl_scram_username, connection.sasl_scram_password
    return None


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


def _pem(path: str, field: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise KafkaRefused(
            f"{field}: {path} cannot be read as a PEM file ({error})", next_step="correct the path"
        ) from error
