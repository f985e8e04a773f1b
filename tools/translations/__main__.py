"""`python -m tools.translations`: every language's .po file brought up to the source, and its .mo file made of that."""

import sys

from tools.translations import TRANSLATED, mo_bytes, mo_path, po_bytes, po_path, read, untranslated, update


def main() -> int:
    """Update all languages; return 1 where texts wait for a translation."""
    waiting = 0
    for language in TRANSLATED:
        catalog = read(language)
        update(catalog)
        po_path(language).parent.mkdir(parents=True, exist_ok=True)
        po_path(language).write_bytes(po_bytes(catalog))
        mo_path(language).write_bytes(mo_bytes(read(language)))
        missing = untranslated(catalog)
        print(f"{language}: {len(catalog)} texts, {len(missing)} to be translated")
        for text in missing:
            print(f"    {text}")
        waiting += len(missing)
    return 1 if waiting else 0


if __name__ == "__main__":
    sys.exit(main())
