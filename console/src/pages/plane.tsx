// The time plane of a windowed step, live: what came when, how the watermark moved, and which panes were sent.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { type Failure, follow, useLive } from "../api";
import { areaOf, coloursOf, Drawing } from "../plane_canvas";
import { type Feed, type Keys, moved, nearest, newestView, Plane, shows, type View, zoomed } from "../plane_model";
import { count, Problem, Sheet } from "../shown";
import { type Plan, rate, REAL_TIME, seconds, type Step, type StepSample } from "./plan";
import { OtherBound, type Question, Why } from "./why";

const SPANS: [string, number][] = [
  ["30 seconds", 30_000],
  ["2 minutes", 120_000],
  ["10 minutes", 600_000],
  ["everything", Number.POSITIVE_INFINITY],
];
const PANES_LISTED = 15;
const LATE_LISTED = 10;
const CLICK = 4;
const KEYS_LISTED = 200;
const KEYS_NAMED = 3;

export function PlanePage({ name, step }: { name: string; step: string | undefined }) {
  const path = `/v1/jobs/${encodeURIComponent(name)}`;
  const plan = useLive<Plan>(`${path}/plan`);
  const windowed = plan.answer?.logical.filter((each) => each.windowed) ?? [];
  const chosen = step ?? windowed[0]?.name;
  if (!plan.answer) return <Problem failure={plan.failure} />;
  if (plan.answer.mode === REAL_TIME) return <NoTime job={path} name={name} steps={plan.answer.logical} />;
  if (!chosen) return <p>The flow has no windows.</p>;
  return (
    <>
      {windowed.length > 1 && (
        <nav class="tabs" aria-label="Windowed steps">
          {windowed.map((each) => (
            <a
              key={each.name}
              href={`#/jobs/${encodeURIComponent(name)}/plane/${encodeURIComponent(each.name)}`}
              aria-current={each.name === chosen ? "page" : undefined}
            >
              {each.name}
            </a>
          ))}
        </nav>
      )}
      <LivePlane key={chosen} job={path} step={chosen} />
    </>
  );
}

/** Of a job in real time: why it has no plane, and how promptly records pass it. */
function NoTime({ job, name, steps }: { job: string; name: string; steps: Step[] }) {
  const newest = useLive<{ samples: { steps: Record<string, StepSample> }[] }>(`${job}/metrics`).answer?.samples.at(-1);
  return (
    <>
      <section class="card" role="note" aria-label="No time plane">
        <h2>Nothing waits here</h2>
        <p>
          A time plane shows how event time and processing time differ: a watermark that moves, and windows and late rows that
          depend on it. A job in real time has none of them. It processes each record by itself, in the order of its partition,
          whatever its event time is: no row waits for another one, and none is late. Event times are passed on as they are.
        </p>
        <p>
          For windows, let a second flow in micro-batches read an output of this one, with <code>event_time=</code>; that flow
          has a time plane. <a href={`#/jobs/${encodeURIComponent(name)}/plan`}>The plan</a> shows what each step does.
        </p>
      </section>
      <h2>What passes</h2>
      <Sheet label="What passes" head={["Step", "Kind", "Rows in", "Rows out", "Rows/s", "Waiting, records", "Waiting, time", "Dead"]}>
        {steps
          .filter((each) => each.kind === "source" || each.kind === "sink")
          .map((each) => {
            const sample = newest?.steps[each.name];
            return (
              <tr key={each.name}>
                <th scope="row">{each.name}</th>
                <td>{each.kind === "source" ? "source" : "output"}</td>
                <td class="number">{count(sample?.rows_in)}</td>
                <td class="number">{count(sample?.rows_out)}</td>
                <td class="number">{rate(sample)}</td>
                <td class="number">{count(sample?.lag_records)}</td>
                <td class="number">{seconds(sample?.lag_s)}</td>
                <td class="number">{count(sample?.rows_dead)}</td>
              </tr>
            );
          })}
      </Sheet>
    </>
  );
}

function LivePlane({ job, step }: { job: string; step: string }) {
  const path = `${job}/plane?step=${encodeURIComponent(step)}&offset=0`;
  const [question, askWhy] = useState<Question | null>(null);
  const pressedAt = useRef<[number, number]>([0, 0]);
  const plane = useMemo(() => new Plane(), [path]);
  const [failure, setFailure] = useState<Failure | null>(null);
  const [, changed] = useState(0);
  const [paused, setPaused] = useState(false);
  const [spanMs, setSpanMs] = useState(120_000);
  const [keys, setKeys] = useState<Keys>(new Map());
  const view = useRef<View | null>(null);
  const canvas = useRef<HTMLCanvasElement>(null);
  const redraw = useRef<() => void>(() => undefined);

  useEffect(
    () =>
      follow<Feed>(
        path,
        (feed) => {
          plane.take(feed);
          setFailure(null);
          changed((before) => before + 1);
        },
        setFailure,
      ),
    [path, plane],
  );

  useEffect(() => {
    const element = canvas.current;
    if (!element) return undefined;
    const drawing = new Drawing(element);
    let colours = coloursOf(element);
    let asked = 0;
    const frames: number[] = [];
    const draw = () => {
      asked = 0;
      const started = performance.now();
      const shown = view.current ?? newestView(plane, spanMs);
      drawing.draw(plane, shown, keys, colours);
      frames.push(performance.now() - started);
      if (frames.length > 60) frames.shift();
      element.dataset["frameMs"] = [...frames].sort((a, b) => a - b)[frames.length >> 1]!.toFixed(2);
      element.dataset["points"] = String(plane.points);
      element.dataset["view"] = [shown.x0, shown.x1, shown.y0, shown.y1].map(Math.round).join(" ");
    };
    redraw.current = () => {
      asked ||= requestAnimationFrame(draw);
    };
    redraw.current();
    const sized = new ResizeObserver(() => redraw.current());
    sized.observe(element);
    const scheme = matchMedia("(prefers-color-scheme: dark)");
    const recoloured = () => {
      colours = coloursOf(element);
      redraw.current();
    };
    scheme.addEventListener("change", recoloured);
    return () => {
      cancelAnimationFrame(asked);
      sized.disconnect();
      scheme.removeEventListener("change", recoloured);
    };
  }, [plane, spanMs, keys]);

  useEffect(() => {
    if (!paused) view.current = null;
    redraw.current();
  });

  const look = (change: (before: View) => View) => {
    view.current = change(view.current ?? newestView(plane, spanMs));
    setPaused(true);
    redraw.current();
  };

  useEffect(() => {
    const element = canvas.current;
    if (!element) return undefined;
    const wheel = (event: WheelEvent) => {
      event.preventDefault();
      const area = areaOf(element);
      const x = (event.offsetX - area.left) / area.width;
      const y = 1 - (event.offsetY - area.top) / area.height;
      look((before) => zoomed(before, event.deltaY > 0 ? 1.2 : 1 / 1.2, x, y));
    };
    element.addEventListener("wheel", wheel, { passive: false });
    return () => element.removeEventListener("wheel", wheel);
  });

  const pause = (does: boolean) => {
    view.current = does ? (view.current ?? newestView(plane, spanMs)) : null;
    setPaused(does);
  };

  const dragged = (event: PointerEvent) => {
    if (event.buttons !== 1 || !canvas.current) return;
    const area = areaOf(canvas.current);
    look((before) => moved(before, -event.movementX / area.width, event.movementY / area.height));
  };

  const clicked = (event: MouseEvent) => {
    const [x, y] = pressedAt.current;
    if (!canvas.current || Math.hypot(event.offsetX - x, event.offsetY - y) > CLICK) return; // it was dragged
    const area = areaOf(canvas.current);
    const shown = view.current ?? newestView(plane, spanMs);
    const found = nearest(plane, shown, area, event.offsetX - area.left, event.offsetY - area.top, keys);
    if (found && "question" in found) askWhy({ pane: found.question, step });
    else if (found?.origin) askWhy({ late: found.origin, step });
  };

  const pressed = (event: KeyboardEvent) => {
    const moves: Record<string, (before: View) => View> = {
      "+": (before) => zoomed(before, 1 / 1.2),
      "-": (before) => zoomed(before, 1.2),
      ArrowLeft: (before) => moved(before, -0.1, 0),
      ArrowRight: (before) => moved(before, 0.1, 0),
      ArrowUp: (before) => moved(before, 0, 0.1),
      ArrowDown: (before) => moved(before, 0, -0.1),
    };
    const move = moves[event.key];
    if (move) {
      event.preventDefault();
      look(move);
    } else if (event.key === " ") {
      event.preventDefault();
      pause(!paused);
    }
  };

  const last = plane.last;
  const heading = plane.heading;
  const panes = plane.panes.filter((each) => shows(keys, each.key)).slice(-PANES_LISTED).reverse();
  const lost = plane.late.filter((each) => shows(keys, each.key)).slice(-LATE_LISTED).reverse();
  const rows = plane.batches.reduce((sum, batch) => sum + batch.count, 0);
  const late = plane.batches.reduce((sum, batch) => sum + batch.late_count, 0);
  return (
    <>
      <Problem failure={failure} />
      {heading && (
        <p class="faint">
          {heading.what}
          {heading.keys.length > 0 && ` per ${heading.keys.join(", ")}`} in {heading.where} when {heading.when},{" "}
          {heading.how}
          {heading.note && `; ${heading.note}`}
        </p>
      )}
      <div class="bar">
        <button type="button" aria-pressed={paused} onClick={() => pause(!paused)}>
          {paused ? "Follow" : "Pause"}
        </button>
        <button type="button" onClick={() => look((before) => zoomed(before, 1 / 1.5))}>
          Zoom in
        </button>
        <button type="button" onClick={() => look((before) => zoomed(before, 1.5))}>
          Zoom out
        </button>
        <button type="button" onClick={() => look((before) => moved(before, 0, -0.5))}>
          Earlier
        </button>
        <button type="button" onClick={() => look((before) => moved(before, 0, 0.5))}>
          Later
        </button>
        <label>
          Shows{" "}
          <select value={String(spanMs)} onChange={(event) => {
            setSpanMs(Number(event.currentTarget.value));
            setPaused(false);
          }}>
            {SPANS.map(([label, value]) => (
              <option key={label} value={String(value)}>
                {label}
              </option>
            ))}
          </select>
        </label>
        {heading && heading.keys.length > 0 && (
          <KeysShown all={plane.keys} chosen={keys} choose={setKeys} />
        )}
        <span class="faint" role="status">
          {last
            ? `batch ${count(last.batch)}: ${count(rows)} rows, ${count(plane.points)} drawn, ${count(late)} late`
            : failure
              ? ""
              : "Repeating the job's batches…"}
        </span>
      </div>
      <canvas
        ref={canvas}
        class="plane"
        tabIndex={0}
        role="img"
        aria-label={`Event time to the right, processing time upwards: ${count(plane.points)} rows and ${count(plane.panes.length)} panes; the newest are in the table below`}
        onPointerDown={(event) => {
          pressedAt.current = [event.offsetX, event.offsetY];
        }}
        onPointerMove={dragged}
        onClick={clicked}
        onKeyDown={pressed}
      />
      <p class="legend">
        <span class="dot" /> row <span class="dot behind" /> behind the watermark <span class="dot lost">×</span> too late{" "}
        <span class="stroke watermark" /> watermark{" "}
        {plane.partitions.length > 1 && (
          <>
            <span class="stroke partition" /> of a partition{" "}
          </>
        )}
        <span class="stroke early" /> early pane{" "}
        <span class="stroke on-time" /> on time <span class="stroke late" /> late
        <span class="faint"> · drag and scroll, or arrows, + and −; space pauses; click a pane or a late row to ask why</span>
      </p>
      {question && <Why key={JSON.stringify(question)} path={job} question={question} close={() => askWhy(null)} />}
      <h2>Newest panes</h2>
      <Sheet label="Newest panes" head={["Sent", "Window", "Key", "Timing", "Index", "Values", "", ""]}>
        {panes.map((pane) => (
          <tr key={`${pane.start} ${pane.key} ${pane.index} ${pane.at}`}>
            <td>{clock(pane.at)}</td>
            <td>
              {clock(pane.start)} – {clock(pane.end)}
            </td>
            <td>{plane.keys[pane.key]}</td>
            <td>{pane.timing.replace("_", " ")}</td>
            <td class="number">{pane.index}</td>
            <td class="value">{pane.label}</td>
            <td class="faint">{pane.replaced ? "replaced" : ""}</td>
            <td>
              <button type="button" class="link" onClick={() => askWhy({ pane: pane.question, step })}>
                Why?
              </button>
            </td>
          </tr>
        ))}
      </Sheet>
      {lost.length > 0 && (
        <>
          <h2>Newest late rows</h2>
          <Sheet label="Newest late rows" head={["Came", "Event time", "Key", "Record", ""]}>
            {lost.map((row, number) => (
              <tr key={number}>
                <td>{clock(row.at)}</td>
                <td>{clock(row.time)}</td>
                <td>{plane.keys[row.key]}</td>
                <td>{row.origin?.join(" ") ?? "of an earlier step"}</td>
                <td>
                  {row.origin && (
                    <button type="button" class="link" onClick={() => askWhy({ late: row.origin!, step })}>
                      Why late?
                    </button>
                  )}
                </td>
              </tr>
            ))}
          </Sheet>
        </>
      )}
      <OtherBound path={job} step={step} />
    </>
  );
}

/** The keys that the plane shows: all, or those that are chosen. */
function KeysShown({ all, chosen, choose }: { all: string[]; chosen: Keys; choose: (keys: Keys) => void }) {
  const [open, setOpen] = useState(false);
  const [search, setSearch] = useState("");
  const found = open ? all.map((name, key) => [name, key] as const).filter(([name]) => name.includes(search)) : [];
  const names = [...chosen.keys()].map((key) => all[key]);
  const toggle = (key: number) => {
    const left = chosen.has(key) ? [...chosen.keys()].filter((each) => each !== key) : [...chosen.keys(), key];
    choose(new Map(left.map((each, place) => [each, place])));
  };
  return (
    <details class="keys" onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>
        Keys: {names.length === 0 ? `all ${count(all.length)}` : names.slice(0, KEYS_NAMED).join(", ")}
        {names.length > KEYS_NAMED && ` and ${count(names.length - KEYS_NAMED)} more`}
      </summary>
      <div>
        <label>
          Search keys <input type="search" value={search} onInput={(event) => setSearch(event.currentTarget.value)} />
        </label>
        <ul>
          {found.slice(0, KEYS_LISTED).map(([name, key]) => (
            <li key={key}>
              <label>
                <input type="checkbox" checked={chosen.has(key)} onChange={() => toggle(key)} /> {name}
              </label>
            </li>
          ))}
        </ul>
        {found.length > KEYS_LISTED && <p class="faint">and {count(found.length - KEYS_LISTED)} more: search for a part of the key</p>}
        <button type="button" onClick={() => choose(new Map())}>
          Show all keys
        </button>
      </div>
    </details>
  );
}

const clock = (ms: number): string => new Date(ms).toISOString().slice(11, 19);
