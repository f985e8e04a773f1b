"""Write presets/schema.json, the JSON Schema of catalogue files, from the classes that read them."""

import json
from pathlib import Path

from launcher.models.catalogue_schema import json_schema

SCHEMA = Path(__file__).parents[1] / "presets" / "schema.json"


def render_schema() -> str:
    """Return the text of the schema's file."""
    return json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    SCHEMA.write_text(render_schema(), "utf-8", newline="\n")
    print(SCHEMA)
