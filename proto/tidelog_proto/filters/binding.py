"""Conditions bound to a schema: names become ids, values literals of the fields' types, and NOT the opposite tests."""

from __future__ import annotations

from tidelog_proto.batch.row_reader import RECORD_COLUMNS
from tidelog_proto.filters.conditions import And, Comparison, Condition, Not, StartsWith
from tidelog_proto.filters.expression import Expression, all_of, any_of
from tidelog_proto.filters.field_tests import FieldTests
from tidelog_proto.filters.filter_limits import FilterError, check_extent
from tidelog_proto.filters.rebinding import field_places
from tidelog_proto.filters.record_columns import RECORD_COLUMN_IDS, RECORD_COLUMN_TYPES
from tidelog_proto.schema.field_paths import field_at
from tidelog_proto.schema.fields import Role
from tidelog_proto.schema.schema_error import SchemaError, shown
from tidelog_proto.schema.topic_schema import Schema

_ROLE_COLUMNS = {"_key": Role.KEY, "_tag": Role.TAG}


def bound(condition: Condition, schema: Schema) -> Expression:
    """Return the expression that is true of the rows of which a condition is true.

    Raises:
        FilterError: a name is unknown, a value does not fit its field, or the expression exceeds a limit.
    """
    expression = _bound(condition, schema, negated=False)
    check_extent(expression)
    return expression


def _bound(condition: Condition, schema: Schema, *, negated: bool) -> Expression:
    """Return the expression that is true where a condition is true, or, if `negated`, where it is false."""
    if isinstance(condition, Not):
        return _bound(condition.condition, schema, negated=not negated)
    if isinstance(condition, Comparison):
        tests = _tests_of(condition.name, schema)
        return tests.compared(condition.operator, condition.values, negated=negated)
    if isinstance(condition, StartsWith):
        return _tests_of(condition.name, schema).starts_with(condition.prefix, negated=negated)
    # De Morgan: a conjunction is false where one of its conditions is.
    join = all_of if isinstance(condition, And) is not negated else any_of
    return join([_bound(each, schema, negated=negated) for each in condition.conditions])


def _tests_of(name: str, schema: Schema) -> FieldTests:
    if name.startswith("_"):
        return _tests_of_records(name, schema)
    try:
        field = field_at(schema.fields, name)
    except SchemaError as error:
        raise FilterError(f"{error} (schema {schema.number})") from None
    if field_places(schema)[field.id].is_item:
        raise FilterError(
            f"field {shown(name)} is below a list, so that a row has any number of its values; test another field"
        )
    return FieldTests(field.id, field.type, name)


def _tests_of_records(name: str, schema: Schema) -> FieldTests:
    role = _ROLE_COLUMNS.get(name)
    field = None if role is None else schema.field_of(role)
    if field is not None:
        raise FilterError(f"the column {shown(name)} is the field {shown(field.name)} in this topic; test that field")
    number = RECORD_COLUMN_IDS.get(name)
    if number is None:
        known = ", ".join(each for each in RECORD_COLUMNS.names if each in RECORD_COLUMN_IDS)
        raise FilterError(f"no column {shown(name)} can be tested; besides the fields, these can: {known}")
    return FieldTests(number, RECORD_COLUMN_TYPES[number], name)
