; The uninstaller, which setup.nsi includes.

!define un "un."

Function un.onInit
  Call un.BeAlone
  StrCpy $KeepModels 1
  ${GetParameters} $0
  ${GetOptions} $0 "/MODELS=" $1
  ${If} $1 == "remove"
    StrCpy $KeepModels 0
  ${EndIf}
FunctionEnd

Function un.AskAboutModels
  !insertmacro MUI_HEADER_TEXT "$(REMOVE)" "$(REMOVE_WHAT)"
  nsDialogs::Create 1018
  Pop $0
  ${NSD_CreateLabel} 0 0 100% 60u "$(REMOVE_TEXT)"
  Pop $0
  StrCpy $KeepModelsBox ""
  ${If} ${FileExists} "${DATA}\models\*.*"
    ${GetSize} "${DATA}\models" "/S=0M" $R0 $1 $2
    ${NSD_CreateCheckbox} 0 70u 100% 12u "$(KEEP_MODELS)"
    Pop $KeepModelsBox
    ${NSD_Check} $KeepModelsBox
    ${NSD_CreateLabel} 12u 84u 100% 24u "${DATA}\models"
    Pop $0
  ${EndIf}
  GetDlgItem $0 $HWNDPARENT 1
  SendMessage $0 ${WM_SETTEXT} 0 "STR:$(^UninstallBtn)"
  nsDialogs::Show
FunctionEnd

Function un.KeepAnswer
  ${If} $KeepModelsBox != ""
    ${NSD_GetState} $KeepModelsBox $KeepModels
  ${EndIf}
FunctionEnd

; Everything of the program's own folder but the models, in whatever order the disk names it.
Function un.RemoveData
  ${If} $KeepModels = 0
    RMDir /r "${DATA}"
    Return
  ${EndIf}
  FindFirst $0 $1 "${DATA}\*"
  ${Do}
    ${If} $1 == ""
      ${ExitDo}
    ${EndIf}
    ${If} $1 != "."
    ${AndIf} $1 != ".."
    ${AndIf} $1 != "models"
      ${If} ${FileExists} "${DATA}\$1\*.*"
        RMDir /r "${DATA}\$1"
      ${Else}
        Delete "${DATA}\$1"
      ${EndIf}
    ${EndIf}
    FindNext $0 $1
  ${Loop}
  FindClose $0
  RMDir "${DATA}\models"
  RMDir "${DATA}"
FunctionEnd

Section Uninstall
  Delete "${LOG}"
  Call un.StopRunning
  SetOutPath "$TEMP"
  SetDetailsPrint none
  StrCpy $Locks 0
  ${Do}
    RMDir /r "$INSTDIR\app"
    RMDir /r "$INSTDIR\app.new"
    RMDir /r "$INSTDIR\app.old"
    ${IfNot} ${FileExists} "$INSTDIR\app\*.*"
    ${AndIfNot} ${FileExists} "$INSTDIR\app.old\*.*"
      ${ExitDo}
    ${EndIf}
    ${If} $Locks >= 40
      SetDetailsPrint both
      ${Fail} 3 "$(IN_USE)"
    ${EndIf}
    IntOp $Locks $Locks + 1
    Sleep 250
  ${Loop}
  SetDetailsPrint both
  ReadRegStr $0 HKCU "${OWN_KEY}" "Folder"
  ${IfNot} ${FileExists} "$0\app\mtp-launcher.cmd"
    Call un.RemoveShared
  ${EndIf}
  Delete "$INSTDIR\${UNINSTALLER}"
  RMDir "$INSTDIR"
SectionEnd

; What all copies of the program share: it stays while another one, in another folder, is the one that Windows knows.
Function un.RemoveShared
  Call un.RemoveData
  Delete "$SMPROGRAMS\${APP}.lnk"
  Delete "$SMPROGRAMS\${APP} (command line).lnk"
  ReadRegStr $0 HKCU "${RUN_KEY}" "${RUN_VALUE}"
  ${If} $0 != ""
    ; it begins with the path of python.exe, perhaps in quotes: ours to take away only when that was ours
    StrLen $2 "$INSTDIR\app\"
    StrCpy $1 $0 1
    ${If} $1 == '"'
      StrCpy $0 $0 "" 1
    ${EndIf}
    StrCpy $1 $0 $2
    ${If} $1 == "$INSTDIR\app\"
      DeleteRegValue HKCU "${RUN_KEY}" "${RUN_VALUE}"
    ${EndIf}
  ${EndIf}
  DeleteRegKey HKCU "${UNINSTALL_KEY}"
  DeleteRegKey HKCU "${OWN_KEY}"
FunctionEnd
