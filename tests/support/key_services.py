"""Stand-ins of AWS KMS and of Vault's transit engine, over HTTP: requests, answers and errors as the services have them.

KMS: https://docs.aws.amazon.com/kms/latest/APIReference/API_Encrypt.html and API_Decrypt.html. Its errors are those of
botocore's model. Vault: https://developer.hashicorp.com/vault/api-docs/secret/transit.
"""

from __future__ import annotations

import base64
import json
import os
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

ARN = "arn:aws:kms:eu-central-1:111122223333:key/"
TOKEN = "hvs.test"


class Refused(Exception):
    """An error of a service."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status, self.text = status, text


class KeyServices:
    """Both services on one port of this machine. Tests add, disable and delete keys."""

    def __init__(self, *names: str) -> None:
        """Start with keys of these names."""
        self.keys = {name: [os.urandom(32)] for name in names}
        """All versions of each key."""
        self.disabled = set[str]()
        self.min_decryption_version = 1
        self.broken = False
        self.requests: list[tuple[str, dict[str, Any]]] = []
        services = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                target = self.headers.get("X-Amz-Target")
                try:
                    if target is None:
                        answer = services.vault(self.path, self.headers.get("X-Vault-Token"), body)
                    else:
                        answer = services.kms(target, body)
                    status = 200
                except Refused as refused:
                    status = refused.status
                    answer = {"errors": [refused.text]} if target is None else {"__type": refused.text}
                data = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{self._server.server_port}"
        self.environment = {
            "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "eu-central-1",
            "AWS_ENDPOINT_URL_KMS": url, "AWS_EC2_METADATA_DISABLED": "true", "VAULT_ADDR": url, "VAULT_TOKEN": TOKEN,
        }  # fmt: skip
        """Variables by which clients find both."""

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    # -- AWS KMS

    def kms(self, target: str, body: dict[str, Any]) -> dict[str, Any]:
        self.requests.append((target, body))
        if self.broken:
            raise Refused(500, "KMSInternalException")
        name = body["KeyId"].removeprefix("alias/").removeprefix(ARN)
        context = json.dumps(body.get("EncryptionContext", {}), sort_keys=True).encode()
        if name not in self.keys:
            raise Refused(400, "NotFoundException")
        if name in self.disabled:
            raise Refused(400, "DisabledException")
        if target == "TrentService.Encrypt":
            sealed = self._seal(name, base64.b64decode(body["Plaintext"]), context)
            return {"CiphertextBlob": base64.b64encode(sealed).decode(), "KeyId": ARN + name}
        assert target == "TrentService.Decrypt"
        try:
            data = self._open(name, -1, base64.b64decode(body["CiphertextBlob"]), context)
        except InvalidTag:
            raise Refused(400, "InvalidCiphertextException") from None
        return {"Plaintext": base64.b64encode(data).decode(), "KeyId": ARN + name}

    # -- Vault

    def vault(self, path: str, token: str | None, body: dict[str, Any]) -> dict[str, Any]:
        self.requests.append((path, body))
        if token != TOKEN:
            raise Refused(403, "permission denied")
        if self.broken:
            raise Refused(503, "Vault is sealed")
        _, version, mount, what, name = path.split("/")
        assert (version, mount) == ("v1", "transit")
        if name not in self.keys:  # an encrypt with the right `create` would make it
            raise Refused(400, "encryption key not found")
        associated = base64.b64decode(body["associated_data"])
        if what == "encrypt":
            sealed = base64.b64encode(self._seal(name, base64.b64decode(body["plaintext"]), associated)).decode()
            latest = len(self.keys[name])
            return {"data": {"ciphertext": f"vault:v{latest}:{sealed}", "key_version": latest}}
        assert what == "decrypt"
        if (parts := re.fullmatch(r"vault:v(\d+):(.*)", body["ciphertext"])) is None:
            raise Refused(400, "invalid ciphertext: no prefix")
        try:
            number, sealed = int(parts[1]), base64.b64decode(parts[2], validate=True)
        except ValueError:
            raise Refused(400, "invalid ciphertext: could not decode base64") from None
        if number < self.min_decryption_version:
            raise Refused(400, "ciphertext or signature version is disallowed by policy (too old)")
        if len(sealed) < 12:
            raise Refused(400, "invalid ciphertext length")
        try:
            data = self._open(name, number - 1, sealed, associated)
        except InvalidTag:  # some versions answer 500: https://github.com/hashicorp/vault/issues/10842
            raise Refused(500, "1 error occurred:\n\t* cipher: message authentication failed\n\n") from None
        return {"data": {"plaintext": base64.b64encode(data).decode()}}

    def _seal(self, name: str, data: bytes, associated: bytes) -> bytes:
        nonce = os.urandom(12)
        return nonce + AESGCM(self.keys[name][-1]).encrypt(nonce, data, associated)

    def _open(self, name: str, version: int, sealed: bytes, associated: bytes) -> bytes:
        if len(sealed) < 28:
            raise InvalidTag
        return AESGCM(self.keys[name][version]).decrypt(sealed[:12], sealed[12:], associated)
