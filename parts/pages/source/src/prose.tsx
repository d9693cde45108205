// An answer's text as Markdown. What parses it is loaded with the first answer, not with the page.
import { useEffect, useState } from "preact/hooks";

type Module = typeof import("./markdown");
let loaded: Module | null = null;

export function Prose({ text, isGrowing }: { text: string; isGrowing: boolean }) {
  const [, draw] = useState(false);
  useEffect(() => {
    if (loaded) return;
    void import("./markdown").then((module) => {
      loaded = module;
      draw(true);
    });
  }, []);
  if (!loaded)
    return (
      <div class="markdown">
        <p class="said plain">{text}</p>
      </div>
    );
  return <loaded.Markdown text={text} isGrowing={isGrowing} />;
}
