{{/* What the operator may do where runs live. No secrets: the gateway alone resolves credentials. */}}
{{- define "moorage.operator.rules" -}}
- apiGroups: [moorage.dev]
  resources: [agentruns, workspaces, agents, modelproviders, runcommands, resourceconstraints]
  verbs: [get, list, watch]
- apiGroups: [moorage.dev]
  resources: [agentruns]
  verbs: [create, delete]  # children that agents ask for; retention.deleteObject
- apiGroups: [moorage.dev]
  resources: [runcommands]
  verbs: [patch]           # owned by their run
- apiGroups: [moorage.dev]
  resources: [agentruns/status, workspaces/status, agents/status, modelproviders/status, runcommands/status, resourceconstraints/status]
  verbs: [patch]
- apiGroups: [""]
  resources: [resourcequotas, limitranges]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, create, delete]
- apiGroups: [""]
  resources: [persistentvolumeclaims]
  verbs: [get, list, create, delete]
- apiGroups: [""]
  resources: [serviceaccounts]
  verbs: [get, list, create, update, delete]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, list, watch, create, update, delete]
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: [get, list, watch, create, update, delete]
- apiGroups: [""]
  resources: [configmaps]
  verbs: [get]             # spec.goalFrom
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [create]
{{- end -}}

{{/* What the operator may do in the release's namespace: find the gateway, and lead. No right to create can name its
object; it is needed where somebody deleted the Lease. */}}
{{- define "moorage.operator.own" -}}
- apiGroups: [""]
  resources: [services]
  verbs: [get]
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  resourceNames: [{{ include "moorage.operator" . }}]
  verbs: [get, update]
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: [create]
{{- end -}}

{{/* What the gateway may do where runs live: credentials at use, renewal of the Leases of live runs. */}}
{{- define "moorage.gateway.rules" -}}
- apiGroups: [""]
  resources: [secrets]
  verbs: [get]
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: [get, patch]
{{- end -}}

{{/* "true" where the API server is to look up who may ask what of a run. */}}
{{- define "moorage.commandPolicy" -}}
{{- and .Values.rbac.commands.policy (not .Values.tenancy.namespaced) -}}
{{- end -}}

{{/* The API version by which a RunCommand's issuer is stamped; empty where it isn't, and its author has to say it. */}}
{{- define "moorage.stamps" -}}
{{- $stamp := .Values.rbac.commands.stampIssuer -}}
{{- if eq $stamp "auto" -}}
{{- if .Capabilities.APIVersions.Has "admissionregistration.k8s.io/v1/MutatingAdmissionPolicy" -}}
admissionregistration.k8s.io/v1
{{- else if .Capabilities.APIVersions.Has "admissionregistration.k8s.io/v1beta1/MutatingAdmissionPolicy" -}}
admissionregistration.k8s.io/v1beta1
{{- end -}}
{{- else if ne $stamp "never" -}}
admissionregistration.k8s.io/{{ $stamp }}
{{- end -}}
{{- end -}}

{{/* A Role with its binding in one namespace. Takes root, name, component, namespace, account, rules; the account
is in the release's namespace unless accountNamespace says otherwise. */}}
{{- define "moorage.role" -}}
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  name: {{ .name | quote }}
  namespace: {{ .namespace | quote }}
  labels: {{- include "moorage.labels" . | nindent 4 }}
rules:
{{ .rules }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: {{ .name | quote }}
  namespace: {{ .namespace | quote }}
  labels: {{- include "moorage.labels" . | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: Role
  name: {{ .name | quote }}
subjects:
  - kind: ServiceAccount
    name: {{ .account | quote }}
    namespace: {{ .accountNamespace | default .root.Release.Namespace | quote }}
{{- end -}}

{{/* The same for the whole cluster. */}}
{{- define "moorage.clusterRole" -}}
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  name: {{ .name | quote }}
  labels: {{- include "moorage.labels" . | nindent 4 }}
rules:
{{ .rules }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: {{ .name | quote }}
  labels: {{- include "moorage.labels" . | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: {{ .name | quote }}
subjects:
  - kind: ServiceAccount
    name: {{ .account | quote }}
    namespace: {{ .root.Release.Namespace | quote }}
{{- end -}}
