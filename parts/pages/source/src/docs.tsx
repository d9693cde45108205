// The catalogue: what this server serves, how it does, and its API.
import { render } from "preact";
import { useEffect, useState } from "preact/hooks";
import { Header } from "./header";
import { applyTheme, keepKey, readKey, readTheme } from "./kept";
import { Routes } from "./routes";
import { CONNECTING, watch } from "./server";
import { Serving } from "./serving";
import { Status } from "./status";

function Catalogue() {
  const [apiKey, setApiKey] = useState(readKey);
  const [server, setServer] = useState(CONNECTING);
  useEffect(() => watch(apiKey, setServer), [apiKey]);
  const setKey = (key: string) => {
    keepKey(key);
    setApiKey(key);
  };
  return (
    <div class="catalogue">
      <Header server={server} apiKey={apiKey} setKey={setKey} link={{ href: "./", text: "Playground" }} />
      <nav aria-label="On this page">
        <a href="#serving">What is served</a>
        <a href="#status">Status</a>
        <a href="#routes">Routes</a>
      </nav>
      <main>
        {!server.needsKey && (
          <>
            <Serving apiKey={apiKey} />
            <Status apiKey={apiKey} />
            <Routes apiKey={apiKey} model={server.model?.id ?? "MODEL"} />
          </>
        )}
        {server.needsKey && <p class="note">Enter a key above to see the model, the load and the routes.</p>}
      </main>
    </div>
  );
}

applyTheme(readTheme());
render(<Catalogue />, document.getElementById("app")!);
