// A part of the page that is loaded when it is first needed.
import type { ComponentType } from "preact";
import { useEffect, useState } from "preact/hooks";

const loaded = new Map<() => Promise<unknown>, unknown>();

export function Later<P extends object>({ load, props }: { load: () => Promise<ComponentType<P>>; props: P }) {
  const [, draw] = useState(0);
  useEffect(() => {
    if (loaded.has(load)) return;
    void load().then((part) => {
      loaded.set(load, part);
      draw((count) => count + 1);
    });
  }, [load]);
  const Part = loaded.get(load) as ComponentType<P> | undefined;
  return Part ? <Part {...props} /> : null;
}
