"""The flow of the demo, and its dashboard in the console."""

from __future__ import annotations

import millstream as ms

flow = ms.Flow("pumped")
readings = flow.read(
    "readings",
    schema="device string NOT NULL, litres int NOT NULL, at timestamp NOT NULL",
    event_time="at",
    # Readings are out of order by three seconds at most, as far as we know. What is later than that is late.
    watermark=ms.bounded("3 seconds", idle="10 seconds"),
)
panes = (
    readings.key_by("device")
    .window(ms.fixed("10 seconds"), allowed_lateness="15 seconds")
    .trigger(ms.after_watermark(early=ms.after("2 seconds"), late=ms.after_count(1)))
    .retracting()
    .agg(litres=ms.sum("litres"), readings=ms.count(), name="litres")
)
panes.write(ms.sqlite(ms.param("database", "pumped.db"), "pumped", key=["device", "window"]), name="panes")
panes.where("pane.timing <> 'early'").write("litres", name="complete")  # the dashboard shows windows that have ended
panes.late.write("readings.late", name="late")
readings.dead.write("readings.dead", name="dead")

ms.dashboard(
    "pumps",
    ms.panel("line", "Litres in ten seconds", "litres", x="window.start", y="litres", by="device"),
    ms.panel("heat", "By pump and window", "litres", x="window.start", y="litres", by="device"),
    ms.panel("plane", "Windows in event time and processing time"),
    ms.panel("table", "Too late", "readings.late", columns=["device", "at", "litres", "reason"], rows=20),
    ms.panel("table", "Broken", "readings.dead", columns=["reason", "value"], rows=20),
)
