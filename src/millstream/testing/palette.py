"""The colours and sizes of a figure; chosen for a white background, which every figure includes."""

PAPER, WHITE, INK, FAINT, GRID = "#fcfcf9", "#ffffff", "#263238", "#6b7780", "#e3e6e2"
WINDOW, WATERMARK, IDEAL, RETRACTED = "#90a4ae", "#1565c0", "#9aa5ab", "#c62828"
TIMINGS = {"early": "#c77700", "on_time": "#2e7d32", "late": "#7b1fa2", "unknown": "#546e7a"}

PANELS_MAX, ELEMENTS_WITH_LABEL_MAX, PANES_SHOWN_MAX = 4, 60, 3
WIDTH_ONE_PX, WIDTH_TWO_PX = 760, 1040
PLOT_HEIGHT_PX, PLOT_HEIGHT_MAX_PX, ROW_HEIGHT_PX, LANE_PX = 360, 720, 28, 19
LEFT_PX, RIGHT_PX, BELOW_PX, ABOVE_PX = 86, 18, 46, 30
RADIUS_PX, BARE_PX, DOT_PX, LETTER_PX, PILL_PX = 10.0, 6.0, 4.0, 6.7, 16.0
