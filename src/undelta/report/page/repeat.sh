{% macro attack() -%}
--attack {{ record.attack | quote }} --seed {{ record.seed | string | quote }}
{%- for key, value in record.arguments.items() if value is not none %} --set {{ (key ~ "=" ~ value | toml) | quote }}{% endfor %}
{%- if custom %} --model {{ custom | quote }}{% endif %} --out repeated
{%- endmacro %}
{% if not scenario %}
undelta attack {{ (record.observation_file or "OBSERVATION") | quote }} {{ attack() }}
{% elif drawn is not none %}
cat > scenario.toml <<'END' &&
{{ scenario | join("\n") }}
END
undelta simulate scenario.toml --observation seen --truth truth --seed {{ drawn | string | quote }} &&
undelta attack seen {{ attack() }} &&
undelta score repeated --truth truth
{% else %}
{% set file = ("trial-" ~ record.key ~ ".toml") | quote %}{# the key comes from a file #}
cat > {{ file }} <<'END' && undelta audit {{ file }} --out {{ ("trial-" ~ record.key) | quote }}
name = {{ (record.name if record.defense == "none" else record.name ~ ", " ~ record.defense) | toml }}
seeds = [{{ record.seed | toml }}]

[scenario]
{{ scenario | join("\n") }}

[[attacks]]
attack = {{ record.attack | toml }}
{% for line in arguments %}
{{ line }}
{% endfor %}
END
{% endif %}
