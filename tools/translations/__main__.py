"""`python -m tools.translations`: all .po files brought up to the source, and what the program reads made of them."""

import sys

from launcher.gui.words import DOMAIN
from tools.translations import (
    SENTENCES,
    TRANSLATED,
    json_bytes,
    json_path,
    mo_bytes,
    mo_path,
    po_bytes,
    po_path,
    read,
    template,
    untranslated,
    update,
)
from tools.translations.sentences import sentences


def main() -> int:
    """Update all languages; return 1 where texts wait for a translation."""
    sources = {DOMAIN: template(), SENTENCES: sentences()}
    waiting = 0
    for language in TRANSLATED:
        for domain, source in sources.items():
            catalog = read(language, domain)
            update(catalog, source)
            po_path(language, domain).parent.mkdir(parents=True, exist_ok=True)
            po_path(language, domain).write_bytes(po_bytes(catalog))
            missing = untranslated(catalog)
            print(f"{language}, {domain}: {len(catalog)} texts, {len(missing)} to be translated")
            for text in missing:
                print(f"    {text}")
            waiting += len(missing)
        mo_path(language).write_bytes(mo_bytes(read(language)))
        json_path(language).write_bytes(json_bytes(read(language, SENTENCES)))
    return 1 if waiting else 0


if __name__ == "__main__":
    sys.exit(main())
