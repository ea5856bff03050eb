// Small things that all pages show the same way.
import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import { acts, type Failure, failureOf } from "./api";

export function Problem({ failure }: { failure: Failure | null }) {
  if (!failure) return null;
  return (
    <div class="problem" role="alert">
      <strong>{failure.what}</strong>
      {failure.where && <div>{failure.where}</div>}
      {failure.next && <div class="faint">{failure.next}</div>}
    </div>
  );
}

const TONES: Record<string, string> = {
  running: "good",
  finished: "good",
  failed: "bad",
  waiting: "warn",
  stopping: "warn",
  scheduled: "calm",
  stopped: "calm",
  restarting: "warn",
  silent: "bad",
  "given up": "bad",
};

export function State({ of }: { of: string }) {
  return <span class={`state ${TONES[of] ?? "calm"}`}>{of}</span>;
}

/** A button that changes something, or that `looks`: one that only takes a while. */
export function Act({ label, does, primary, looks }: { label: string; does: () => Promise<unknown>; primary?: boolean; looks?: boolean }) {
  const [busy, setBusy] = useState(false);
  const [failure, setFailure] = useState<Failure | null>(null);
  const run = async () => {
    setBusy(true);
    setFailure(null);
    try {
      await does();
    } catch (error) {
      setFailure(failureOf(error));
    }
    setBusy(false);
  };
  if (!acts && !looks) return null;
  return (
    <>
      <button type="button" class={primary ? "primary" : ""} disabled={busy} onClick={run}>
        {label}
      </button>
      <Problem failure={failure} />
    </>
  );
}

/** Numbers side by side, each under its name. */
export function Facts({ of }: { of: [string, ComponentChildren][] }) {
  return (
    <dl class="facts">
      {of.map(([name, value]) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd>{value ?? "–"}</dd>
        </div>
      ))}
    </dl>
  );
}

/** A table that scrolls sideways where it does not fit, also by keyboard. */
export function Sheet({ label, head, children }: { label: string; head: string[]; children: ComponentChildren }) {
  return (
    <div class="sheet" role="region" aria-label={label} tabIndex={0}>
      <table>
        <thead>
          <tr>
            {head.map((each, number) => (
              <th key={number} scope="col">
                {each}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>{children}</tbody>
      </table>
    </div>
  );
}

export const count = (value: number | null | undefined): string =>
  value === null || value === undefined ? "–" : value.toLocaleString("en");

export function bytes(value: number): string {
  const units = ["B", "KB", "MB", "GB", "TB"];
  let size = value;
  let unit = 0;
  while (size >= 1024 && unit < units.length - 1) {
    size /= 1024;
    unit += 1;
  }
  return `${size < 10 && unit ? size.toFixed(1) : Math.round(size)} ${units[unit]}`;
}

/** Seconds since 1970 as a time in UTC. */
export const moment = (seconds: number | null | undefined): string =>
  seconds === null || seconds === undefined
    ? "–"
    : new Date(seconds * 1000).toISOString().replace("T", " ").slice(0, 19);

export function span(seconds: number): string {
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 120) return `${Math.round(seconds)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  return `${Math.round(seconds / 3600)} h`;
}

/** A value of a record as text. */
export function text(value: unknown): string {
  if (value === null || value === undefined) return "null";
  return typeof value === "string" ? value : JSON.stringify(value);
}
