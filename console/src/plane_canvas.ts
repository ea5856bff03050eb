// Draws a time plane: event time to the right, processing time upwards. Points go straight into pixels, so that a
// hundred thousand of them are drawn within a frame.
import { BEHIND, type Keys, LOST, partOf, type Plane, shows, type View } from "./plane_model";

const LEFT = 74;
const BOTTOM = 40;
const TOP = 10;
const RIGHT = 12;

interface Colours {
  ink: string;
  faint: string;
  line: string;
  card: string;
  watermark: string;
  window: string;
  timings: Record<string, string>;
  dots: [number, number, number];
}

export function coloursOf(element: Element): Colours {
  const style = getComputedStyle(element);
  const named = (name: string) => style.getPropertyValue(name).trim();
  return {
    ink: named("--ink"),
    faint: named("--faint"),
    line: named("--line"),
    card: named("--card"),
    watermark: named("--watermark"),
    window: named("--window"),
    timings: { early: named("--early"), on_time: named("--on-time"), late: named("--late"), unknown: named("--faint") },
    dots: [pixel(named("--ink")), pixel(named("--late")), pixel(named("--bad"))],
  };
}

/** A colour such as #rrggbb as a pixel of an image, in the byte order of all machines that browsers run on. */
function pixel(colour: string): number {
  const value = Number.parseInt(colour.slice(1, 7), 16);
  return ((0xff << 24) | ((value & 0xff) << 16) | (value & 0xff00) | (value >> 16)) >>> 0;
}

export interface Area {
  left: number;
  top: number;
  width: number;
  height: number;
}

export function areaOf(canvas: HTMLCanvasElement): Area {
  return {
    left: LEFT,
    top: TOP,
    width: Math.max(40, canvas.clientWidth - LEFT - RIGHT),
    height: Math.max(40, canvas.clientHeight - TOP - BOTTOM),
  };
}

export class Drawing {
  private readonly layer = document.createElement("canvas");
  private image: ImageData | null = null;
  private pixels = new Uint32Array(0);

  constructor(private readonly canvas: HTMLCanvasElement) {}

  draw(plane: Plane, view: View, keys: Keys, colours: Colours): void {
    const ratio = window.devicePixelRatio || 1;
    const { clientWidth, clientHeight } = this.canvas;
    if (this.canvas.width !== Math.round(clientWidth * ratio) || this.canvas.height !== Math.round(clientHeight * ratio)) {
      this.canvas.width = Math.round(clientWidth * ratio);
      this.canvas.height = Math.round(clientHeight * ratio);
    }
    const context = this.canvas.getContext("2d")!;
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.fillStyle = colours.card;
    context.fillRect(0, 0, clientWidth, clientHeight);
    const area = areaOf(this.canvas);
    const x = (time: number) => area.left + ((time - view.x0) / (view.x1 - view.x0)) * area.width;
    const y = (at: number) => area.top + area.height - ((at - view.y0) / (view.y1 - view.y0)) * area.height;
    this.axes(context, view, area, x, y, colours);
    context.save();
    context.beginPath();
    context.rect(area.left, area.top, area.width, area.height);
    context.clip();
    this.windows(context, plane, area, x, keys, colours);
    this.line(context, [[view.y0, view.y0], [view.y1, view.y1]], x, y, colours.faint, [5, 5], 1, false);
    for (const name of plane.partitions.length > 1 ? plane.partitions : []) {
      const moves = plane.batches.map((batch) => [batch.at, batch.partitions[name] ?? null] as const);
      this.line(context, moves, x, y, colours.watermark, [2, 3], 1, true);
      this.named(context, name, moves, view, x, y, colours);
    }
    this.panes(context, plane, view, x, y, keys, colours);
    this.dots(context, plane, view, area, ratio, keys, colours);
    const reached = plane.batches.map((batch) => [batch.at, batch.watermark] as const);
    this.line(context, reached, x, y, colours.watermark, [], 2.4, true);
    context.restore();
  }

  private axes(context: CanvasRenderingContext2D, view: View, area: Area, x: (time: number) => number, y: (at: number) => number, colours: Colours): void {
    context.strokeStyle = colours.line;
    context.fillStyle = colours.faint;
    context.lineWidth = 1;
    context.font = "11px system-ui, sans-serif";
    context.textAlign = "center";
    for (const [time, text] of ticks(view.x0, view.x1, area.width / 90)) {
      context.beginPath();
      context.moveTo(x(time), area.top);
      context.lineTo(x(time), area.top + area.height);
      context.stroke();
      context.fillText(text, x(time), area.top + area.height + 15);
    }
    context.textAlign = "right";
    for (const [at, text] of ticks(view.y0, view.y1, area.height / 45)) {
      context.beginPath();
      context.moveTo(area.left, y(at));
      context.lineTo(area.left + area.width, y(at));
      context.stroke();
      context.fillText(text, area.left - 6, y(at) + 4);
    }
    context.textAlign = "center";
    context.fillText("event time →", area.left + area.width / 2, area.top + area.height + 32);
    context.save();
    context.translate(12, area.top + area.height / 2);
    context.rotate(-Math.PI / 2);
    context.fillText("processing time →", 0, 0);
    context.restore();
  }

  private windows(context: CanvasRenderingContext2D, plane: Plane, area: Area, x: (time: number) => number, keys: Keys, colours: Colours): void {
    const spans = new Map<string, [number, number]>();
    for (const pane of plane.panes) {
      if (shows(keys, pane.key)) spans.set(`${pane.start} ${pane.end}`, [pane.start, pane.end]);
    }
    for (const [start, end] of spans.values()) {
      const left = x(start);
      const right = x(end);
      if (right < area.left || left > area.left + area.width) continue;
      context.globalAlpha = 0.1;
      context.fillStyle = colours.window;
      context.fillRect(left, area.top, right - left, area.height);
      context.globalAlpha = 0.6;
      context.strokeStyle = colours.window;
      context.strokeRect(left, area.top - 1, right - left, area.height + 2);
    }
    context.globalAlpha = 1;
  }

  private panes(context: CanvasRenderingContext2D, plane: Plane, view: View, x: (time: number) => number, y: (at: number) => number, keys: Keys, colours: Colours): void {
    context.font = "600 11px system-ui, sans-serif";
    context.textAlign = "center";
    for (const pane of plane.panes) {
      if (pane.at < view.y0 || pane.at > view.y1 || pane.end < view.x0 || pane.start > view.x1) continue;
      if (!shows(keys, pane.key)) continue;
      const [start, end] = partOf(pane, keys);
      const left = x(start) + 2;
      const width = Math.max(2, x(end) - x(start) - 4);
      const at = y(pane.at);
      context.globalAlpha = pane.replaced ? 0.35 : 0.95;
      context.fillStyle = colours.timings[pane.timing] ?? colours.faint;
      context.fillRect(left, at - 3, width, 6);
      const label = keys.size > 1 ? `${plane.keys[pane.key]} ${pane.label}` : pane.label;
      if (keys.size > 0 && width > label.length * 6.5) {
        context.globalAlpha = pane.replaced ? 0.6 : 1;
        context.fillStyle = colours.ink;
        context.fillText(label, left + width / 2, at - 6);
      }
    }
    context.globalAlpha = 1;
  }

  /** Steps: the value of a batch holds until the next batch. */
  private line(context: CanvasRenderingContext2D, moves: readonly (readonly [number, number | null])[], x: (time: number) => number, y: (at: number) => number, colour: string, dash: number[], width: number, steps: boolean): void {
    context.strokeStyle = colour;
    context.lineWidth = width;
    context.setLineDash(dash);
    context.beginPath();
    let before: number | null = null;
    for (const [at, to] of moves) {
      if (to === null) continue;
      if (before === null) context.moveTo(x(to), y(at));
      else {
        if (steps) context.lineTo(x(before), y(at));
        context.lineTo(x(to), y(at));
      }
      before = to;
    }
    context.stroke();
    context.setLineDash([]);
  }

  /** The name of a partition, at the newest point of its watermark in view. */
  private named(context: CanvasRenderingContext2D, name: string, moves: readonly (readonly [number, number | null])[], view: View, x: (time: number) => number, y: (at: number) => number, colours: Colours): void {
    const last = moves.findLast(([at, to]) => to !== null && at <= view.y1);
    if (!last || last[1] === null) return;
    context.font = "10px system-ui, sans-serif";
    context.textAlign = "right";
    context.fillStyle = colours.watermark;
    context.fillText(name, x(last[1]) - 4, y(last[0]) + 11);
  }

  private dots(context: CanvasRenderingContext2D, plane: Plane, view: View, area: Area, ratio: number, keys: Keys, colours: Colours): void {
    const width = Math.round(area.width * ratio);
    const height = Math.round(area.height * ratio);
    if (!this.image || this.image.width !== width || this.image.height !== height) {
      this.layer.width = width;
      this.layer.height = height;
      this.image = new ImageData(width, height);
      this.pixels = new Uint32Array(this.image.data.buffer);
    }
    const pixels = this.pixels;
    pixels.fill(0);
    const size = Math.round(dotPx(plane.points) * ratio);
    const half = size >> 1;
    const scaleX = width / (view.x1 - view.x0);
    const scaleY = height / (view.y1 - view.y0);
    const { times, ats, keyOf, fates, points } = plane;
    const hidden = new Uint8Array(keys.size > 0 ? plane.keys.length : 0).fill(1);
    for (const key of keys.keys()) hidden[key] = 0;
    for (let place = 0; place < points; place += 1) {
      if (hidden[keyOf[place]!]) continue;
      const fate = fates[place]!;
      const left = Math.round((times[place]! - view.x0) * scaleX) - half;
      const top = height - Math.round((ats[place]! - view.y0) * scaleY) - half;
      if (left < 0 || top < 0 || left + size >= width || top + size >= height) continue;
      const colour = colours.dots[fate]!;
      for (let row = 0; row < size; row += 1) {
        const start = (top + row) * width + left;
        if (fate === LOST) {
          pixels[start + row] = colour;
          pixels[start + size - 1 - row] = colour;
        } else if (fate === BEHIND && row > 0 && row < size - 1) {
          pixels[start] = colour;
          pixels[start + size - 1] = colour;
        } else pixels.fill(colour, start, start + size);
      }
    }
    this.layer.getContext("2d")!.putImageData(this.image, 0, 0);
    context.drawImage(this.layer, area.left, area.top, area.width, area.height);
  }
}

/** Few rows are drawn large enough to distinguish, and many small. */
const dotPx = (points: number): number => (points <= 1000 ? 7 : points <= 20_000 ? 5 : 3);

const STEPS_MS = [100, 250, 500, 1e3, 2e3, 5e3, 1e4, 1.5e4, 3e4, 6e4, 12e4, 3e5, 6e5, 9e5, 18e5, 36e5, 72e5, 216e5, 432e5, 864e5, 6048e5, 2592e6];

/** Round instants between two, at most so many. */
function ticks(low: number, high: number, most: number): [number, string][] {
  const step = STEPS_MS.find((each) => (high - low) / each <= Math.max(2, most)) ?? 31536e6;
  const found: [number, string][] = [];
  for (let at = Math.ceil(low / step) * step; at <= high && found.length < 50; at += step) {
    const text = new Date(at).toISOString();
    found.push([at, step >= 864e5 ? text.slice(0, 10) : step < 1000 ? text.slice(14, 23) : text.slice(11, 19)]);
  }
  return found;
}
