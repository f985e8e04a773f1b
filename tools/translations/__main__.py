"""`python -m tools.translations`: updates the .po files from the source, compiles them, and prints the texts without a
translation.
"""

import sys

from tools.translations import (
    TRANSLATED,
    list_untranslated,
    make_template,
    mo_bytes,
    mo_path,
    po_bytes,
    po_path,
    read_catalog,
    update_catalog,
)


def main() -> int:
    """Update all languages. Return 0: a text without a translation is shown in English."""
    source = make_template()
    for language in TRANSLATED:
        catalog = read_catalog(language)
        update_catalog(catalog, source)
        po_path(language).parent.mkdir(parents=True, exist_ok=True)
        po_path(language).write_bytes(po_bytes(catalog))
        mo_path(language).write_bytes(mo_bytes(read_catalog(language)))
        missing = list_untranslated(catalog)
        print(f"{language}: {len(catalog)} texts, {len(missing)} without a translation")
        for text in missing:
            print(f"    {text}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
