"""How the audit views read JSON on each dialect. Released views were written with it: it says the same for ever."""

from sqlalchemy import Connection

RARE = "type NOT IN ('checkpoint_captured', 'checkpoint_replicated', 'checkpoint_flushed', 'replay_checked')"
"""Nearly all of a large log is the others; views that do not ask for them use an index that leaves them out."""


class SQLiteJson:
    """How SQLite reads JSON."""

    @staticmethod
    def document(alias: str) -> str:
        """The body as text."""
        return f"replace(CAST({alias}.body AS TEXT), '\\u0000', '\\ufffd')"

    def text(self, path: str, alias: str = "e") -> str:
        """The value at a path, as text; JSON when it is a list or an object."""
        return f"json_extract({self.document(alias)}, '$.{path}')"

    whole = text

    def size(self, path: str, alias: str = "e") -> str:
        """Length of the list at a path."""
        return f"json_array_length({self.document(alias)}, '$.{path}')"

    def each(self, path: str, name: str) -> str:
        """The items of the list of objects at a path, as rows `name`."""
        return f"json_each({self.document('e')}, '$.{path}') AS {name}"

    def each_of(self, item: str, key: str, name: str) -> str:
        """The plain values of the list under a key of an item."""
        return f"json_each({item}.value, '$.{key}') AS {name}"

    def member(self, item: str, key: str) -> str:
        """The value under a key of an item."""
        return f"json_extract({item}.value, '$.{key}')"

    scalars = each


class PostgresJson:
    """How PostgreSQL reads JSON. The type is json, not jsonb: it hands out the recorded text as it is."""

    @staticmethod
    def document(alias: str) -> str:
        """The body as json."""
        return f"replace(convert_from({alias}.body, 'UTF8'), '\\u0000', '\\ufffd')::json"

    @staticmethod
    def _path(path: str) -> str:
        return "'{" + path.replace(".", ",") + "}'"

    def text(self, path: str, alias: str = "e") -> str:
        """The value at a path, as text; JSON when it is a list or an object."""
        return f"({self.document(alias)} #>> {self._path(path)})"

    whole = text

    def size(self, path: str, alias: str = "e") -> str:
        """Length of the list at a path."""
        return f"json_array_length({self.document(alias)} #> {self._path(path)})"

    def each(self, path: str, name: str) -> str:
        """The items of the list of objects at a path, as rows `name`."""
        return f"json_array_elements({self.document('e')} #> {self._path(path)}) AS {name}(value)"

    def scalars(self, path: str, name: str) -> str:
        """The items of the list of plain values at a path, as rows `name`."""
        return f"json_array_elements_text({self.document('e')} #> {self._path(path)}) AS {name}(value)"

    def each_of(self, item: str, key: str, name: str) -> str:
        """The plain values of the list under a key of an item."""
        return f"json_array_elements_text({item}.value -> '{key}') AS {name}(value)"

    def member(self, item: str, key: str) -> str:
        """The value under a key of an item."""
        return f"({item}.value ->> '{key}')"


def json_of(connection: Connection) -> SQLiteJson | PostgresJson:
    """The way of the connection's database."""
    return SQLiteJson() if connection.dialect.name == "sqlite" else PostgresJson()
