"""Schemas of typed topics: the model, its canonical encoding and Arrow types, evolution, and reading across schemas.

`topic_schema.Schema` is the model, `arrow_types.value_type` the type of the column `value`. A first schema is made by
`next_schema.first_schema`, the next ones by `edited_schema` or, of a full description, by `matched_schema`; an owner
checks any of them by `evolution_rules.changes_between`. `fields_of_arrow` and `type_text.field_of_text` make fields.
`reading_plan` reads values of one schema under another. Schemas are stored and sent as `message_of_schema` and
`schema_of_message` convert them; `canonical_decoding.decoded_schema` reads the bytes of which the digest is made.
"""
