"""``/``: a page for people. What is here, how far it is, and how to ask for it."""

from __future__ import annotations

from flask import Blueprint, render_template_string, request

from api.declared import Answer, declared
from api.stores import the_replica

page = Blueprint("page", __name__)

TEMPLATE = """\
<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>statehouse</title>
<style>
  :root { color-scheme: light dark; --line: #8884; --soft: #8881; }
  body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 3rem auto; padding: 0 1.5rem; }
  h1 { font-weight: 600; margin-bottom: 0; }
  h2 { font-size: 1.1rem; margin-top: 2.5rem; }
  .wide { overflow-x: auto; }
  table { border-collapse: collapse; width: 100%; }
  th, td { text-align: left; padding: .45rem .8rem .45rem 0; border-bottom: 1px solid var(--line); }
  td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; }
  pre { background: var(--soft); padding: 1rem; border-radius: .4rem; overflow-x: auto; }
  code { font-size: .9em; }
  .error { color: #c33; }
</style>
<h1>statehouse</h1>
<p>The current state of every key, from streams of events. <a href="{{ base }}/docs">The API</a>.</p>
<div class="wide"><table>
  <tr><th>store<th>stream<th>reduce
    <th class="n">keys<th class="n">position<th class="n">head
    <th class="n" title="how old the oldest event of the changelog is that is not in the answers">lag
    <th class="n" title="how old the newest event of the topic is that is in the answers, if it has newer ones">of the topic</tr>
  {%- for s in stores %}
  <tr>
    <td><a href="{{ base }}/stores/{{ s.name }}">{{ s.name }}</a>
      (<a href="{{ base }}/stores/{{ s.name }}/keys?limit=100">keys</a>)
    <td>{{ s.stream }}<td><code>{{ s.reduce }}</code>
    <td class="n">{{ "{:,}".format(s["keys"]) }}
    <td class="n">{{ "-" if s.position is none else s.position }}
    <td class="n">{{ "-" if s.head is none else s.head }}
    <td class="n">{{ "-" if s.lag_ms is none else "%.1f s" % (s.lag_ms / 1000) }}
    <td class="n">{{ "%.1f s" % (s.live.lag_ms / 1000) if s.live.state == "following" else s.live.state }}
  </tr>
  {%- if s.error %}
  <tr><td colspan="8" class="error">{{ s.error }}</tr>
  {%- endif %}
  {%- else %}
  <tr><td colspan="8">The configuration has no stores yet.</tr>
  {%- endfor %}
</table></div>
{%- if stores %}
{%- set one = url ~ "/stores/" ~ stores[0].name %}
<h2>Ask</h2>
<pre><code>curl {{ url }}/stores                 # every store: columns, keys, position, lag
curl '{{ one }}/keys?limit=10'   # a scan; pass its cursor on for the next page
curl {{ one }}/keys/KEY          # the state of one key; percent-encode it</code></pre>
<h2>Tell</h2>
<pre><code>curl -X PUT {{ one }}/keys/KEY -H 'Content-Type: application/json' -d '{"value": VALUE}'
curl -X DELETE {{ one }}/keys/KEY</code></pre>
<p>A write is an event: it is answered when Kafka has it, and seen when it has come round.</p>
{%- endif %}
</html>
"""


@page.get("/")
@declared(answers={200: Answer("the page", {"text/html": {}})}, closed=False)
def index() -> str:
    """The stores with links, and how to curl."""
    replica = the_replica()
    stores = [replica.status(name) for name in replica.config.stores]
    return render_template_string(TEMPLATE, stores=stores, base=request.script_root, url=request.url_root.rstrip("/"))
