; The uninstaller, which setup.nsi includes.

!define un "un."

Function un.onInit
  Call un.BeAlone
  StrCpy $KeepSettings 1
  StrCpy $KeepModels 1
  ${GetParameters} $0
  ${GetOptions} $0 "/SETTINGS=" $1
  ${If} $1 == "remove"
    StrCpy $KeepSettings 0
  ${EndIf}
  ${GetOptions} $0 "/MODELS=" $1
  ${If} $1 == "remove"
    StrCpy $KeepModels 0
  ${EndIf}
FunctionEnd

Function un.AskWhatStays
  !insertmacro MUI_HEADER_TEXT "$(REMOVE)" "$(REMOVE_WHAT)"
  nsDialogs::Create 1018
  Pop $0
  ${NSD_CreateLabel} 0 0 100% 36u "$(REMOVE_TEXT)"
  Pop $0
  ${NSD_CreateCheckbox} 0 42u 100% 12u "$(KEEP_SETTINGS)"
  Pop $KeepSettingsBox
  ${If} $KeepSettings = 1
    ${NSD_Check} $KeepSettingsBox
  ${EndIf}
  ${GetSize} "${DATA}\models" "/S=0M" $R0 $1 $2
  ${GetSize} "${DATA}\engines" "/S=0M" $R1 $1 $2
  IntOp $R0 $R0 + $R1
  ${NSD_CreateCheckbox} 0 58u 100% 12u "$(KEEP_MODELS)"
  Pop $KeepModelsBox
  ${If} $KeepModels = 1
    ${NSD_Check} $KeepModelsBox
  ${EndIf}
  ${NSD_CreateLabel} 12u 74u 100% 24u "${DATA}"
  Pop $0
  GetDlgItem $0 $HWNDPARENT 1
  SendMessage $0 ${WM_SETTEXT} 0 "STR:$(^UninstallBtn)"
  nsDialogs::Show
FunctionEnd

Function un.KeepAnswer
  ${NSD_GetState} $KeepSettingsBox $KeepSettings
  ${NSD_GetState} $KeepModelsBox $KeepModels
FunctionEnd

; Removes from the program's own folder (launcher/base/paths.py) what the user does not keep.
Function un.RemoveData
  FindFirst $0 $1 "${DATA}\*"
  ${Do}
    ${If} $1 == ""
      ${ExitDo}
    ${ElseIf} $1 == "."
    ${OrIf} $1 == ".."
      StrCpy $2 1
    ${ElseIf} $1 == "Cache"
    ${OrIf} $1 == "logs"
    ${OrIf} $1 == "run"
      StrCpy $2 0 ; the program makes it again when it needs it
    ${ElseIf} $1 == "models"
    ${OrIf} $1 == "engines"
      StrCpy $2 $KeepModels
    ${Else}
      StrCpy $2 $KeepSettings
    ${EndIf}
    ${If} $2 = 0
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
  ${If} $0 == $INSTDIR
    ReadRegStr $Made HKCU "${OWN_KEY}" "Made"
  ${EndIf}
  ${IfNot} ${FileExists} "$0\app\mtp-launcher.cmd"
    Call un.RemoveShared
  ${EndIf}
  Delete "$INSTDIR\${UNINSTALLER}"
  Call un.RemoveFolders
SectionEnd

; Removes what all copies of the program share. Not called if Windows has another copy, in another folder, registered.
Function un.RemoveShared
  Call un.RemoveData
  Delete "$SMPROGRAMS\${APP}.lnk"
  Delete "$SMPROGRAMS\${APP} (command line).lnk"
  ReadRegStr $0 HKCU "${RUN_KEY}" "${RUN_VALUE}"
  ${If} $0 != ""
    ; The value begins with the path of python.exe, perhaps in quotes. It is removed only if that is in $INSTDIR.
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
  DeleteRegKey HKCU "${CLASSES}\${FILE_TYPE}"
  DeleteRegValue HKCU "${CLASSES}\.gguf\OpenWithProgids" "${FILE_TYPE}"
  DeleteRegKey /ifempty HKCU "${CLASSES}\.gguf\OpenWithProgids"
  DeleteRegKey /ifempty HKCU "${CLASSES}\.gguf"
  ${RefreshShellIcons}
  DeleteRegKey HKCU "${UNINSTALL_KEY}"
  DeleteRegKey HKCU "${OWN_KEY}"
FunctionEnd
