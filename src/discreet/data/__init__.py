"""Data: what is public about a table, how its cells are read, and public data sets.

- :class:`Schema` declares columns (:class:`Integer`, :class:`Real`, :class:`Date`,
  :class:`Boolean`, :class:`Categorical`), the unit of privacy and the target.
- :func:`read_table` and :func:`table_batches` bring records into the declared domain;
  :func:`check_columns` and :func:`check_integrity` look at the form of an input alone.
- :func:`draft_schema` drafts a schema from names, types and a public codebook.
- :class:`Encoding` turns rows into vectors of a known largest norm.
- :func:`complete_schema`, :func:`plan_cells` and :func:`plan_repairs` learn, for a price, what a
  schema leaves open, a rough distribution, and how many cells are repaired.
- :func:`open_input`, :class:`RawBatch` and :func:`column_array` are the steps below: records as
  they came, and what their cells say.
- :func:`mnist` and its neighbours are public data sets.

Arrow, pandas and scikit-learn are imported when they are first used.
"""

from discreet.data._cells import (
    RawBatch,
    column_array,
    date_in_text,
    import_arrow,
    number_in_text,
    text_of,
    wall_clock,
)
from discreet.data._columns import (
    Boolean,
    Bounded,
    Categorical,
    Column,
    Date,
    Integer,
    Labelled,
    Real,
)
from discreet.data._downloads import cache_directory
from discreet.data._drafting import Draft, draft_schema
from discreet.data._encoding import Encoding
from discreet.data._noisy_cells import CellPlan, NoisyCells, plan_cells
from discreet.data._public_sets import (
    Census,
    LabelledImages,
    LabelledRecords,
    MadeUpPurchases,
    Sentences,
    SplitImages,
    adult,
    cifar10,
    digits,
    faces,
    fashion_mnist,
    location30,
    made_up_purchases,
    mnist,
    sst2,
)
from discreet.data._readers import (
    CSV_ENDINGS,
    PARQUET_ENDINGS,
    CsvInput,
    ParquetInput,
    TableInput,
    named_columns,
    open_input,
)
from discreet.data._repairs import RepairPlan, plan_repairs, possible_mistakes
from discreet.data._schema import MOST_ROWS, CsvFormat, Learned, Schema
from discreet.data._schema_learning import (
    MOST_LEARNED,
    SchemaPlan,
    StableCategories,
    category_text,
    complete_schema,
    learned_categories,
    plan_schema,
)
from discreet.data._table import (
    Table,
    check_columns,
    check_integrity,
    read_table,
    table_batches,
)
from discreet.errors import DataCorrupt, DataUnavailable

__all__ = [
    "CSV_ENDINGS",
    "MOST_LEARNED",
    "MOST_ROWS",
    "PARQUET_ENDINGS",
    "Boolean",
    "Bounded",
    "Categorical",
    "CellPlan",
    "Census",
    "Column",
    "CsvFormat",
    "CsvInput",
    "DataCorrupt",
    "DataUnavailable",
    "Date",
    "Draft",
    "Encoding",
    "Integer",
    "Labelled",
    "LabelledImages",
    "LabelledRecords",
    "Learned",
    "MadeUpPurchases",
    "NoisyCells",
    "ParquetInput",
    "RawBatch",
    "Real",
    "RepairPlan",
    "Schema",
    "SchemaPlan",
    "Sentences",
    "SplitImages",
    "StableCategories",
    "Table",
    "TableInput",
    "adult",
    "cache_directory",
    "category_text",
    "check_columns",
    "check_integrity",
    "cifar10",
    "column_array",
    "complete_schema",
    "date_in_text",
    "digits",
    "draft_schema",
    "faces",
    "fashion_mnist",
    "import_arrow",
    "learned_categories",
    "location30",
    "made_up_purchases",
    "mnist",
    "named_columns",
    "number_in_text",
    "open_input",
    "plan_cells",
    "plan_repairs",
    "plan_schema",
    "possible_mistakes",
    "read_table",
    "sst2",
    "table_batches",
    "text_of",
    "wall_clock",
]
