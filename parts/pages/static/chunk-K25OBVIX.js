import{u as a}from"./chunk-Y3OXJD2D.js";var f="YOUR_KEY";function h(t,n){let o=n?` \\
  -H 'Authorization: Bearer ${f}'`:"",r=JSON.stringify(t,null,2).replaceAll("'","'\\''");return`curl -N ${a()}/v1/chat/completions \\
  -H 'Content-Type: application/json'${o} \\
  -d '${r}'`}var p=new Set(["return_token_ids","return_token_logprobs","continue_token_ids"]);function _(t,n){let{stream:o,stream_options:r,...i}=t,c=Object.entries(i).filter(([s])=>p.has(s)),e=Object.fromEntries(Object.entries(i).filter(([s])=>!p.has(s)));return c.length&&(e.extra_body=Object.fromEntries(c)),`from openai import OpenAI

client = OpenAI(base_url="${a()}/v1", api_key="${n?f:"none"}")
stream = client.chat.completions.create(
    stream=True,
${Object.entries(e).map(([s,u])=>`    ${s}=${l(u,"    ")},`).join(`
`)}
)
for chunk in stream:
    if chunk.choices:
        delta = chunk.choices[0].delta
        print(delta.content or "", end="", flush=True)
${t.tools?m:""}`}var m=`        for call in delta.tool_calls or []:
            print(call.function.name or "", call.function.arguments or "", end="", flush=True)
`,$='  for (const { function: call } of delta?.tool_calls ?? [])\n    process.stdout.write(`${call.name ?? ""} ${call.arguments ?? ""}`);\n';function O(t,n){let{stream_options:o,...r}=t;return`import OpenAI from "openai";

const client = new OpenAI({ baseURL: "${a()}/v1", apiKey: "${n?f:"none"}" });
const stream = await client.chat.completions.create(${JSON.stringify(r,null,2)});
for await (const chunk of stream) {
  const delta = chunk.choices[0]?.delta;
  process.stdout.write(delta?.content ?? "");
${t.tools?$:""}}
`}function l(t,n){if(t==null)return"None";if(t===!0)return"True";if(t===!1)return"False";if(typeof t=="string")return JSON.stringify(t);if(typeof t=="number")return String(t);let o=`${n}    `,[r,i,c]=Array.isArray(t)?["[","]",t.map(e=>l(e,o))]:["{","}",Object.entries(t).map(([e,s])=>`${JSON.stringify(e)}: ${l(s,o)}`)];return c.length?`${r}
${c.map(e=>`${o}${e},
`).join("")}${n}${i}`:r+i}export{h as a,_ as b,O as c,l as d};
