"""Functions of Spark SQL that are rejected by name, and why."""

from __future__ import annotations


def _all(names: str, why: str) -> dict[str, str]:
    return dict.fromkeys(names.split(), why)


UNREPEATABLE: dict[str, str] = _all(
    "rand random randn randstr uniform shuffle uuid now curdate current_date current_time current_timestamp "
    "localtimestamp current_user user session_user current_catalog current_database current_schema "
    "current_timezone monotonically_increasing_id spark_partition_id input_file_name input_file_block_length "
    "input_file_block_start localtime current_path version",
    "results must be repeatable, and this one differs with each call",
)
DIFFERENT: dict[str, str] = {
    **UNREPEATABLE,
    **_all(
        "hash xxhash64 format_number format_string printf unbase64 conv json_tuple bround to_char to_number",
        "its result would differ between the runners",
    ),
    **_all("from_utc_timestamp to_utc_timestamp convert_timezone", "time zones are not supported in a flow"),
}
"""Rejected by name, and why."""

ABOUT_MORE_ROWS: dict[str, str] = {
    **_all(
        "sum count avg mean min max first first_value last last_value any_value collect_list collect_set array_agg "
        "stddev stddev_samp stddev_pop variance var_samp var_pop median mode percentile percentile_approx "
        "approx_percentile approx_count_distinct count_if bool_and bool_or every some any max_by min_by corr covar_pop "
        "covar_samp kurtosis skewness listagg string_agg grouping product",
        "use .agg(…) for aggregates; an expression here is evaluated for one row",
    ),
    **_all(
        "row_number rank dense_rank percent_rank ntile lag lead nth_value cume_dist",
        "window functions look at other rows; use key_by(…).window(…).agg(…)",
    ),
    **_all("window session_window window_time", "use .window(ms.fixed(…)) or .window(ms.sessions(…))"),
    **_all(
        "explode explode_outer posexplode posexplode_outer inline inline_outer stack",
        "make rows in a select(…), as a whole column: select('id', x='explode(xs)'), or in a flat_map(…)",
    ),
}
"""Functions that take or return more than one row, and what to use instead."""
