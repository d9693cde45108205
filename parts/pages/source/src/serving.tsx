// The card of what is served: the model, the profile that was chosen for this machine, and why.
import type { ComponentChildren } from "preact";
import { useEffect, useState } from "preact/hooks";
import { getJSON, worded } from "./api";
import { base, hardwareOf, METADATA, type Metadata, type Profile } from "./server";

export function Serving({ apiKey }: { apiKey: string }) {
  const [found, setFound] = useState<Metadata | null>(null);
  const [error, setError] = useState("");
  useEffect(() => {
    getJSON<Metadata>(METADATA, apiKey).then(
      (metadata) => {
        setFound(metadata);
        setError("");
      },
      (failure: Error) => setError(worded(failure)),
    );
  }, [apiKey]);
  return (
    <section id="serving" aria-labelledby="serving-title">
      <h2 id="serving-title">What is served</h2>
      {error && (
        <p class="error" role="alert">
          {error}
        </p>
      )}
      {found && <Card of={found} />}
    </section>
  );
}

function Card({ of }: { of: Metadata }) {
  const { shortName, modelUrl } = of.modelInfo[0]!;
  const { profile, licenseInfo } = of;
  return (
    <dl class="card">
      <Row name="Model">
        <strong>{shortName}</strong>
        {modelUrl !== shortName && ` (${modelUrl})`}
        <br />
        {of.description}
      </Row>
      <Row name="Licence">
        {licenseInfo ? (
          <a href={licenseInfo.url} rel="noopener noreferrer">
            {licenseInfo.name}
          </a>
        ) : (
          "as the checkpoint's owner says"
        )}
      </Row>
      {profile && <ProfileRows of={profile} id={of.selectedModelProfileId} />}
      <Row name="Base URL">
        <code>{base()}/v1</code> for OpenAI's clients, <code>{base()}</code> for Anthropic's
      </Row>
      <Row name="Release">Harmonium {of.version}</Row>
    </dl>
  );
}

function ProfileRows({ of, id }: { of: Profile; id: string }) {
  const devices = hardwareOf(of);
  const copies = of.replicas > 1 ? `${of.replicas} engines, each on ` : "";
  return (
    <>
      <Row name="Context">{of.max_model_len.toLocaleString("en")} tokens of prompt and answer together</Row>
      <Row name="Profile">
        <code>{of.name}</code>
        <br />
        <span class="note">id {id.slice(0, 12)}…</span>
      </Row>
      <Row name="Runs on">
        {copies}
        {devices}, engine {of.engine}, {of.precision}
      </Row>
      <Row name="Goal">{of.goal}</Row>
      <Row name="Why this one">{of.reason}</Row>
      <Row name="Values">
        <strong>{of.status}</strong>: {of.source}
      </Row>
    </>
  );
}

function Row({ name, children }: { name: string; children: ComponentChildren }) {
  return (
    <div>
      <dt>{name}</dt>
      <dd>{children}</dd>
    </div>
  );
}
