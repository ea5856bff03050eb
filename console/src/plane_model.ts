// What a time plane holds: the newest batches of a step, as columns that can be drawn quickly.

export type Pane = [
  start: number | null,
  end: number | null,
  timing: string,
  index: number,
  key: string,
  label: string,
  question: Record<string, unknown>,
];

/** Topic, partition and offset. */
export type Origin = [string, number, number];

export interface Batch {
  batch: number;
  at: number;
  watermark: number | null;
  before: number | null;
  partitions: Record<string, number | null>;
  rows: [time: number, key: string][];
  count: number;
  late: [time: number, key: string, origin: Origin | null][];
  late_count: number;
  panes: Pane[];
  pane_count: number;
}

export interface Heading {
  step: string;
  what: string;
  where: string;
  when: string;
  how: string;
  keys: string[];
  note: string | null;
}

export interface Feed {
  heading: Heading | null;
  batches: Batch[];
}

export const IN_TIME = 0;
export const BEHIND = 1;
export const LOST = 2;
export const BATCHES_KEPT = 400;

export interface DrawnPane {
  start: number;
  end: number;
  at: number;
  timing: string;
  index: number;
  key: number;
  label: string;
  question: Record<string, unknown>;
  replaced: boolean;
}

export interface LateRow {
  time: number;
  at: number;
  key: number;
  origin: Origin | null;
}

export class Plane {
  heading: Heading | null = null;
  keys: string[] = [];
  batches: Batch[] = [];
  times = new Float64Array(1024);
  ats = new Float64Array(1024);
  keyOf = new Int32Array(1024);
  fates = new Uint8Array(1024);
  points = 0;
  panes: DrawnPane[] = [];
  late: LateRow[] = [];
  partitions: string[] = [];
  private readonly numbers = new Map<string, number>();
  private readonly newest = new Map<string, DrawnPane>();

  take(feed: Feed): void {
    this.heading = feed.heading ?? this.heading;
    for (const batch of feed.batches) {
      if (batch.batch >= (this.last?.batch ?? 0)) this.add(batch);
    }
    if (this.batches.length > BATCHES_KEPT + 50) this.rebuild(this.batches.slice(-BATCHES_KEPT));
  }

  get first(): Batch | undefined {
    return this.batches[0];
  }

  get last(): Batch | undefined {
    return this.batches.at(-1);
  }

  private rebuild(batches: Batch[]): void {
    this.batches = [];
    this.points = 0;
    this.panes = [];
    this.late = [];
    this.newest.clear();
    for (const batch of batches) this.add(batch);
  }

  private add(batch: Batch): void {
    this.batches.push(batch);
    for (const name of Object.keys(batch.partitions)) {
      if (!this.partitions.includes(name)) this.partitions.push(name);
    }
    const lost = new Set(batch.late.map(([time, key]) => `${time} ${key}`));
    for (const [time, key] of batch.rows) {
      if (lost.size > 0 && lost.has(`${time} ${key}`)) continue;
      this.point(time, batch.at, key, batch.before !== null && time < batch.before ? BEHIND : IN_TIME);
    }
    for (const [time, key, origin] of batch.late) {
      this.point(time, batch.at, key, LOST);
      this.late.push({ time, at: batch.at, key: this.number(key), origin });
    }
    for (const [start, end, timing, index, key, label, question] of batch.panes) {
      if (start === null || end === null) continue;
      const pane = { start, end, at: batch.at, timing, index, key: this.number(key), label, question, replaced: false };
      const place = `${start} ${end} ${key}`;
      const before = this.newest.get(place);
      if (before) before.replaced = true;
      this.newest.set(place, pane);
      this.panes.push(pane);
    }
  }

  private point(time: number, at: number, key: string, fate: number): void {
    if (this.points === this.times.length) this.grow();
    this.times[this.points] = time;
    this.ats[this.points] = at;
    this.keyOf[this.points] = this.number(key);
    this.fates[this.points] = fate;
    this.points += 1;
  }

  private number(key: string): number {
    let found = this.numbers.get(key);
    if (found === undefined) {
      found = this.keys.length;
      this.numbers.set(key, found);
      this.keys.push(key);
    }
    return found;
  }

  private grow(): void {
    const larger = <T extends Float64Array | Int32Array | Uint8Array>(from: T, into: T): T => {
      into.set(from);
      return into;
    };
    const size = this.times.length * 2;
    this.times = larger(this.times, new Float64Array(size));
    this.ats = larger(this.ats, new Float64Array(size));
    this.keyOf = larger(this.keyOf, new Int32Array(size));
    this.fates = larger(this.fates, new Uint8Array(size));
  }
}

/** The keys that are shown, each with its place among them; if there are none, all are. */
export type Keys = ReadonlyMap<number, number>;

export const shows = (keys: Keys, key: number): boolean => keys.size === 0 || keys.has(key);

/** Where the bar of a pane is: panes of several keys share the width of their window. */
export function partOf(pane: DrawnPane, keys: Keys): [start: number, end: number] {
  if (keys.size < 2) return [pane.start, pane.end];
  const width = (pane.end - pane.start) / keys.size;
  const start = pane.start + width * (keys.get(pane.key) ?? 0);
  return [start, start + width];
}

const NEAR = 8;

/** The late row, or else the pane, nearest to a point, if one is within a few pixels. */
export function nearest(
  plane: Plane,
  view: View,
  size: { width: number; height: number },
  x: number,
  y: number,
  keys: Keys,
): LateRow | DrawnPane | null {
  const across = (time: number) => ((time - view.x0) / (view.x1 - view.x0)) * size.width;
  const up = (at: number) => size.height - ((at - view.y0) / (view.y1 - view.y0)) * size.height;
  let found: LateRow | DrawnPane | null = null;
  let best = NEAR;
  for (const row of plane.late) {
    const distance = Math.hypot(across(row.time) - x, up(row.at) - y);
    if (distance < best && shows(keys, row.key)) [best, found] = [distance, row];
  }
  if (found) return found;
  for (const pane of plane.panes) {
    const distance = Math.abs(up(pane.at) - y);
    const [start, end] = partOf(pane, keys);
    const inside = across(start) <= x && x <= across(end);
    if (inside && distance <= best && shows(keys, pane.key)) [best, found] = [distance, pane];
  }
  return found;
}

export interface View {
  x0: number;
  x1: number;
  y0: number;
  y1: number;
}

const MARGIN = 0.04;
const LEAST_MS = 1000;

/** All that the last batches have, `spanMs` of processing time at most. */
export function newestView(plane: Plane, spanMs: number): View {
  const last = plane.last;
  if (!last) return { x0: 0, x1: 60_000, y0: 0, y1: 60_000 };
  const y0 = Math.max(plane.first?.at ?? 0, last.at - spanMs);
  let low = Number.POSITIVE_INFINITY;
  let high = Number.NEGATIVE_INFINITY;
  for (let place = plane.points - 1; place >= 0 && plane.ats[place]! >= y0; place -= 1) {
    if (plane.fates[place] === LOST) continue;
    low = Math.min(low, plane.times[place]!);
    high = Math.max(high, plane.times[place]!);
  }
  for (let place = plane.panes.length - 1; place >= 0 && plane.panes[place]!.at >= y0; place -= 1) {
    low = Math.min(low, plane.panes[place]!.start);
    high = Math.max(high, plane.panes[place]!.end);
  }
  if (low > high) {
    low = y0;
    high = last.at;
  }
  const width = Math.max(high - low, LEAST_MS);
  const height = Math.max(last.at - y0, LEAST_MS);
  return { x0: low - width * MARGIN, x1: high + width * MARGIN, y0: y0 - height * MARGIN, y1: last.at + height * MARGIN };
}

/** A view that is moved and scaled around a point of it, from 0 to 1 in both directions. */
export function zoomed(view: View, factor: number, x = 0.5, y = 0.5): View {
  const width = view.x1 - view.x0;
  const height = view.y1 - view.y0;
  const atX = view.x0 + width * x;
  const atY = view.y0 + height * y;
  return {
    x0: atX - width * factor * x,
    x1: atX + width * factor * (1 - x),
    y0: atY - height * factor * y,
    y1: atY + height * factor * (1 - y),
  };
}

export function moved(view: View, x: number, y: number): View {
  const width = (view.x1 - view.x0) * x;
  const height = (view.y1 - view.y0) * y;
  return { x0: view.x0 + width, x1: view.x1 + width, y0: view.y0 + height, y1: view.y1 + height };
}
